"""Batches from their upload to their files, and responses of the batch routes."""

import anyio
import httpx

from common.scalars import base64_of
from tests.integration.coordinatord.scene.batching import CREATE, Batching
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.support.invariants.batches import broken_batches


async def settle(provider: Party, job: str) -> None:
    assert (await provider.run(provider.claim(job))).status_code == 201
    settled = await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
    assert settled.status_code == 201, settled.text


@shows("POST /v1/batches", 200)
@shows("GET /v1/batches/{id}", 200)
async def test_batch_output_has_a_line_per_job(
    batching: Batching, client: Party, provider: Party, stage: Stage
) -> None:
    settles, fails, taken_back = batching.submitter.lines(3)
    created = await batching.create(settles, b"", b"no json", fails, taken_back, metadata={"project": "x"})
    assert created["status"] == "validating"
    assert created["metadata"] == {"project": "x"}
    assert created["expires_at"] - created["created_at"] == 86_400
    posted = await batching.until(created["id"], status="in_progress", counts=(0, 1, 4))
    assert posted["output_file_id"] is None
    for line in (settles, fails, taken_back):
        await until(lambda line=line: stage.http.get(f"/v1/jobs/{line['job_id']}"), 200)  # type: ignore[misc]
    await settle(provider, settles["job_id"])
    await provider.run(provider.claim(fails["job_id"]))
    await provider.run(provider.fail(fails["job_id"]))
    cancelled = await stage.http.post(
        f"/v1/jobs/{taken_back['job_id']}/cancel", json=client.cancel(taken_back["job_id"])
    )
    assert cancelled.status_code == 200

    done = await batching.until(created["id"], status="completed", counts=(1, 3, 4))
    (output,) = await batching.lines(done["output_file_id"])
    assert output == {
        "id": f"batch_req_{done['id']}_1",
        "custom_id": None,
        "response": {"status_code": 200, "request_id": settles["job_id"], "body": None},
        "error": None,
        "svc": {
            "job_id": settles["job_id"],
            "result_cid": output["svc"]["result_cid"],
            "provider": 1,
            "rate_in": "1000000",
            "rate_out": "2000000",
            "completion_tok": 10,
        },
    }
    errors = await batching.lines(done["error_file_id"])
    assert [(line["id"].rpartition("_")[2], line["error"]["code"]) for line in errors] == [
        ("3", "invalid_json"),
        ("4", "provider_fail"),
        ("5", "cancelled"),
    ]
    assert [line["svc"] for line in errors] == [
        {"job_id": None, "line": 3},
        {"job_id": fails["job_id"], "line": 4},
        {"job_id": taken_back["job_id"], "line": 5},
    ]
    assert done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    assert await broken_batches(stage.ground.database, stage.ground.pins) == []


def error(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    body = answer.json()["error"]
    return answer.status_code, body["code"], body["param"]


@shows("POST /v1/batches", 400, "invalid_request_error")
@shows("POST /v1/batches", 400, "invalid_endpoint")
@shows("POST /v1/batches", 400, "invalid_completion_window")
@shows("POST /v1/batches", 400, "invalid_input_file")
async def test_creation_names_the_member_at_fault(batching: Batching, stranger: Party) -> None:
    await stranger.sign_in()
    good = {**CREATE, "input_file_id": await batching.upload(b"{}")}
    theirs = await Batching.of(batching.stage, stranger)
    for changed, code, param in (
        ({"endpoint": "/v1/chat/completions"}, "invalid_endpoint", "endpoint"),
        ({"endpoint": 5}, "invalid_endpoint", "endpoint"),
        ({"endpoint": None}, None, "endpoint"),
        ({"completion_window": "2h"}, "invalid_completion_window", "completion_window"),
        ({"completion_window": None}, None, "completion_window"),
        ({"input_file_id": "file-none"}, "invalid_input_file", "input_file_id"),
        ({"input_file_id": 5}, None, "input_file_id"),
        ({"input_file_id": await theirs.upload(b"{}")}, "invalid_input_file", "input_file_id"),
        ({"metadata": []}, None, "metadata"),
        ({"metadata": {"a": 1}}, None, "metadata.a"),
        ({"metadata": {"k" * 65: ""}}, None, "metadata"),
        ({"metadata": {"a": "v" * 513}}, None, "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, None, "metadata"),
    ):
        assert error(await batching.post({**good, **changed})) == (400, code, param)
    hour = (await batching.post({**good, "completion_window": "1h", "endpoint": "/v1/embeddings"})).json()
    assert (hour["expires_at"] - hour["created_at"], hour["svc"]) == (3600, {"sla": "1h"})
    largest = {"k" * 64: "v" * 512} | {str(n): "" for n in range(15)}
    created = await batching.post({**good, "metadata": largest})
    assert (created.status_code, created.json()["metadata"]) == (200, largest)


async def test_file_that_is_no_batch_upload_is_no_input(batching: Batching, stage: Stage) -> None:
    file_id = await batching.upload(b"{}")
    await stage.execute("update files set purpose = 'input' where id = $1", file_id)
    assert error(await batching.post({**CREATE, "input_file_id": file_id}))[1] == "invalid_input_file"
    await stage.execute("update files set purpose = 'batch', expires_at = now() where id = $1", file_id)
    assert error(await batching.post({**CREATE, "input_file_id": file_id}))[1] == "invalid_input_file"


async def test_input_file_of_a_batch_is_kept_for_the_retention_period(batching: Batching, stage: Stage) -> None:
    created = await batching.create(b"{}")
    kept = "select attached and expires_at > now() + interval '29 days' from files where id = $1"
    assert await stage.fetchval(kept, created["input_file_id"])


@shows("POST /v1/batches", 400, "idempotency_key_reused")
async def test_same_key_and_body_answer_with_the_same_batch(batching: Batching, stranger: Party) -> None:
    body = {**CREATE, "input_file_id": await batching.upload(b"{}"), "metadata": {"a": "b", "c": "d"}}
    first = await batching.post(body, **{"idempotency-key": "k1"})
    again = await batching.post({**body, "metadata": {"c": "d", "a": "b"}}, **{"idempotency-key": "k1"})
    other = await batching.post(body, **{"idempotency-key": "k2"})
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]
    changed = await batching.post({**body, "completion_window": "1h"}, **{"idempotency-key": "k1"})
    assert error(changed) == (400, "idempotency_key_reused", "idempotency-key")
    for wrong in ("k" * 256, "a b"):
        assert error(await batching.post(body, **{"idempotency-key": wrong})) == (400, None, "idempotency-key")
    at_once: set[str] = set()

    async def create() -> None:
        at_once.add((await batching.post(body, **{"idempotency-key": "k3"})).json()["id"])

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(create)
    assert len(at_once) == 1
    # Another wallet has separate idempotency keys.
    await stranger.sign_in()
    theirs = await Batching.of(batching.stage, stranger)
    file_id = await theirs.upload(b"{}")
    answer = await theirs.post({**CREATE, "input_file_id": file_id}, **{"idempotency-key": "k1"})
    assert answer.status_code == 200


async def test_plan_shares_lines_among_providers_cheapest_first(
    batching: Batching, client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    rooms = [int((await stage.http.get(f"/evm/providers/{number}")).json()["capacity"]) for number in (1, 2)]
    for who, number, rate in ((provider, 1, 5), (rival, 2, 4)):
        await who.publish(who.asks(number, (1, 86_400, rate, 7)))
        await who.http.get("/evm/jobs?state=Open&model=1&free=1", headers=who.authorization)
    assert (await provider.run(provider.claim((await client.post())["job_id"]))).status_code == 201
    await client.post(designated=1)

    async def planned(window: str) -> list[tuple[str, str]]:
        model = {"model_id": 1, "lines": sum(rooms), "units_in": 10, "units_out": 10}
        answer = await batching.post({"completion_window": window, "models": [model]})
        (plan,) = answer.json()["plan"]
        return [(share["provider_id"], share["lines"]) for share in plan["allocation"]]

    assert await planned("24h") == [("2", str(rooms[1])), ("1", str(rooms[0] - 2))]
    assert await planned("1h") == []
    await stage.execute("update liveness set seen_at = seen_at - interval '1 minute' where provider_id = 2")
    assert await planned("24h") == [("1", str(rooms[0] - 2))]


async def test_plan_names_the_member_at_fault(batching: Batching) -> None:
    model = {"model_id": 1, "lines": 1, "units_in": 0, "units_out": 0}
    good: dict[str, object] = {"completion_window": "1h", "models": [model] * 16}
    assert (await batching.post(good)).status_code == 402
    for changed, code, param in (
        ({"completion_window": "2h"}, "invalid_completion_window", "completion_window"),
        ({"models": []}, None, "models"),
        ({"models": [model] * 17}, None, "models"),
        ({"models": [model, {**model, "lines": 0}]}, None, "models[1].lines"),
    ):
        assert error(await batching.post(good | changed)) == (400, code, param)


@shows("GET /v1/batches", 200)
@shows("GET /v1/batches", 400, "invalid_request_error")
async def test_list_pages_from_the_newest_by_cursor(batching: Batching, stranger: Party) -> None:
    empty = (await batching.get("")).json()
    assert (empty["data"], empty["first_id"], empty["last_id"], empty["has_more"]) == ([], None, None, False)
    ids = [(await batching.create(b"{}"))["id"] for _ in range(5)][::-1]
    await stranger.sign_in()
    theirs = (await (await Batching.of(batching.stage, stranger)).create(b"{}"))["id"]
    page = (await batching.get("?limit=2")).json()
    assert ([b["id"] for b in page["data"]], page["has_more"]) == (ids[:2], True)
    assert (page["object"], page["first_id"], page["last_id"]) == ("list", ids[0], ids[1])
    rest = (await batching.get(f"?limit=3&after={page['last_id']}")).json()
    assert ([b["id"] for b in rest["data"]], rest["has_more"]) == (ids[2:], False)
    assert int(rest["as_of_block"]) > 0
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), (f"after={theirs}", "after")):
        assert error(await batching.get(f"?{query}")) == (400, None, param)


@shows("GET /v1/batches/{id}", 404, "not_found")
@shows("POST /v1/batches/{id}/cancel", 404, "not_found")
async def test_batch_is_its_owners_alone(batching: Batching, stranger: Party) -> None:
    await stranger.sign_in()
    theirs = (await (await Batching.of(batching.stage, stranger)).create(b"{}"))["id"]
    for batch_id in (theirs, "batch_none", "%00"):
        assert (await batching.get(f"/{batch_id}")).status_code == 404
        assert (await batching.cancel(batch_id)).status_code == 404


@shows("POST /v1/batches", 413, "body_too_large")
async def test_batch_body_over_1_mib_is_refused(stage: Stage, batching: Batching) -> None:
    large = await stage.http.post("/v1/batches", content=b" " * (2**20 + 1), headers=batching.owner.authorization)
    assert large.status_code == 413


@shows("GET /v1/batches", 503, "not_ready")
@shows("GET /v1/batches/{id}", 503, "not_ready")
@shows("POST /v1/batches/{id}/cancel", 503, "not_ready")
async def test_reads_wait_for_the_index_and_creation_does_not(batching: Batching, stage: Stage) -> None:
    created = (await batching.create(b"{}"))["id"]
    with stage.node.answering(unreachable):
        await until(lambda: stage.http.get("/readyz"), 503)
        for answer in (await batching.get(""), await batching.get(f"/{created}"), await batching.cancel(created)):
            assert answer.status_code == 503
        assert (await batching.create(b"{}"))["status"] == "validating"
