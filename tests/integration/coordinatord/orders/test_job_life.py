"""Life of a job on the book, and its cancellation."""

import time
from typing import Final

import pytest

from common.scalars import base64_of, hex_of
from coordinatord.api.book.posted_jobs_sql import read_posted_terms
from coordinatord.chain.contracts import job_registry
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import node_error, unreachable, view
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.specification import CONTRACT_ERROR
from tests.integration.coordinatord.scene.stage import Stage
from tests.integration.coordinatord.scene.unmined import mined_again, no_blocks, until_true

TIMES: Final = ("reclaimable_at", "ended_at")


@shows("POST /v1/jobs", 402)
@shows("POST /v1/jobs", 201)
@shows("GET /v1/jobs/{id}", 200)
async def test_posted_job_is_readable_when_the_201_returns(client: Party, stage: Stage) -> None:
    posted = await client.post()
    job = (await stage.http.get(f"/v1/jobs/{posted['job_id']}")).json()
    assert job["status"] == "queued"
    assert job["svc"]["task_cid"] == posted["task_cid"]
    assert await stage.stored(f"containers/{posted['job_id'][2:]}")


async def told_of(stage: Stage, job: str) -> tuple[Body, Body]:
    """Return the job's own members as its client sees it, and its row of the book."""
    client_view = (await stage.http.get(f"/v1/jobs/{job}")).json()["svc"]
    row = (await stage.http.get(f"/evm/jobs/{job}")).json()
    assert [client_view.get(name) for name in TIMES] == [row.get(name) for name in TIMES]
    return client_view, row


async def time_of_newest(stage: Stage) -> int:
    block = await stage.world.anvil.call("eth_getBlockByNumber", "latest", False)
    return int(block["timestamp"], 16)


async def test_job_shows_its_reclaim_time_or_its_end(client: Party, provider: Party, stage: Stage) -> None:
    job, other = (await client.post())["job_id"], (await client.post())["job_id"]
    told, _ = await told_of(stage, job)
    assert "reclaimable_at" not in told
    assert "ended_at" not in told
    assert told["amount"] == str(3_000 + 75 + 2_000)
    assert (await provider.run(provider.claim(job))).status_code == 201
    told, row = await told_of(stage, job)
    assert int(told["reclaimable_at"]) == int(row["claimed_at"]) + 3600
    index = await stage.fetchval("select block_number from index_position")
    assert isinstance(index, int)
    assert int(told.get("reclaimable_block", index + 1)) > index  # an estimate, once two blocks are a second apart
    assert "ended_at" not in told
    assert (await provider.run(provider.fail(job))).status_code == 201
    ended_at = await time_of_newest(stage)
    told, _ = await told_of(stage, job)
    assert ("reclaimable_at" in told, told["ended_at"]) == (False, str(ended_at))
    cancelled = await stage.http.post(f"/v1/jobs/{other}/cancel", json=client.cancel(other))
    assert cancelled.status_code == 200
    told, _ = await told_of(stage, other)
    assert told["ended_at"] == str(await time_of_newest(stage))
    listed = (await stage.http.get("/evm/jobs?state=Cancelled")).json()["jobs"]
    assert {each["ended_at"] for each in listed} == {str(ended_at), told["ended_at"]}


async def test_settled_job_reports_its_cost_and_parts(client: Party, provider: Party, stage: Stage) -> None:
    job, other = (await client.post())["job_id"], (await client.post())["job_id"]
    for each in (job, other):
        assert (await provider.run(provider.claim(each))).status_code == 201
    assert "cost" not in (await told_of(stage, job))[0]
    settled = await provider.run(provider.settle(job, completion_tok=500, result=base64_of(b"the sealed result")))
    assert settled.status_code == 201
    assert (await provider.run(provider.fail(other))).status_code == 201
    told, _ = await told_of(stage, job)
    assert told["cost"] == str(2_000 + 50 + 2_000)  # 1000 units in at 1, 500 out at 2
    assert told["cost_parts"] == {"provider": "2000", "fee": "50", "gas_fee": "2000"}
    assert "cost" not in (await told_of(stage, other))[0]


CANCEL = "POST /v1/jobs/{id}/cancel"


@shows(CANCEL, 200)
async def test_repeated_cancel_changes_nothing(client: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    first = await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job))
    assert first.status_code == 200
    assert first.json()["job_id"] == job
    read = (await stage.http.get(f"/v1/jobs/{job}")).json()
    assert (read["status"], read["svc"]["state"], read["svc"]["ended_because"]) == ("cancelled", 3, 2)
    again = await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job, int(time.time()) - 5))
    assert again.status_code == 200
    late = await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job, int(time.time()) - 700))
    assert (late.status_code, late.json()["error"]["code"]) == (409, "StaleOp")


async def test_early_cancel_must_be_resent_by_the_owner(client: Party, provider: Party, stage: Stage) -> None:
    body = await client.paid()
    cancel = f"/v1/jobs/{body['job_id']}/cancel"
    async with no_blocks(stage):
        assert (await stage.http.post("/v1/jobs", json=body, headers={"prefer": "respond-async"})).status_code == 202
        soon = await stage.http.post(cancel, json=client.cancel(body["job_id"]))
        assert (soon.status_code, soon.json()["error"]["type"]) == (503, "not_ready")
        assert int(soon.headers["retry-after"]) == 1
        others = await stage.http.post(cancel, json=provider.cancel(body["job_id"]))
        assert (others.status_code, others.json()["error"]["code"]) == (409, "NotTheOwner")
        await until_true(lambda: stage.fetchval("select count(*) = 1 from relays where state = 'signed'"))
        await mined_again(stage)
        await until_true(lambda: stage.fetchval("select count(*) = 1 from relays where state = 'mined'"))
    answer = await stage.http.post(cancel, json=client.cancel(body["job_id"]))
    assert (answer.status_code, answer.json()["job_id"]) == (200, body["job_id"])


async def test_cancel_of_an_ended_job_returns_its_transaction(client: Party, provider: Party, stage: Stage) -> None:
    cancelled, failed = [(await client.post())["job_id"] for _ in range(2)]
    ended = {cancelled: (await stage.http.post(f"/v1/jobs/{cancelled}/cancel", json=client.cancel(cancelled))).json()}
    assert (await provider.run(provider.claim(failed))).status_code == 201
    ended[failed] = (await provider.run(provider.fail(failed))).json()
    relays = await stage.fetchval("select count(*) from relays")
    for job, by in ended.items():
        for seconds in (0, 3):
            again = client.cancel(job, int(time.time()) - seconds)
            answer = await stage.http.post(f"/v1/jobs/{job}/cancel", json=again)
            assert (answer.status_code, answer.json()) == (200, {"job_id": job, "tx_hash": by["tx_hash"]})
    assert await stage.fetchval("select count(*) from relays") == relays


async def test_foreign_end_of_a_job_is_found_in_the_logs_once(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    job_id = bytes.fromhex(job[2:])
    known = (await read_posted_terms(stage.ground.database.prepared_connection(), [job_id]))[job_id]
    assert known is not None
    calldata = job_registry.cancel_calldata(known.posted, 0, b"")
    call = {"from": client.address, "to": hex_of(client.registry), "data": hex_of(calldata)}
    alone = await stage.world.anvil.call("eth_sendTransaction", call)
    for _ in range(2):
        answer = await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job))
        assert (answer.status_code, answer.json()["tx_hash"]) == (200, alone)
    assert await stage.fetchval("select count(*) from relays where kind = 'cancel'") == 0
    with stage.node.answering(node_error(lambda call: call["method"] == "eth_getLogs")):
        answer = await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job))
    assert (answer.status_code, answer.json()["tx_hash"]) == (200, alone)


async def test_expired_job_is_cancelled_by_one_transaction(client: Party, stage: Stage) -> None:
    async def chain_time() -> int:
        return int((await stage.world.anvil.call("eth_getBlockByNumber", "latest", False))["timestamp"], 16)

    expires_at = max(int(time.time()), await chain_time()) + 60
    job = (await client.post(expires_at=expires_at))["job_id"]
    await stage.world.anvil.call("evm_setNextBlockTimestamp", expires_at + 60)
    await stage.world.anvil.call("evm_mine")
    between = (int(time.time()) + await chain_time()) // 2  # accepted by both the chain's clock and ours
    bodies = [client.cancel(job, between), client.cancel(job, between + 1)]
    answers = [await stage.http.post(f"/v1/jobs/{job}/cancel", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    assert await stage.fetchval("select count(*) from relays where kind = 'cancel'") == 1
    assert (await stage.http.get(f"/v1/jobs/{job}")).json()["svc"]["ended_because"] == 5


@shows(CANCEL, 409, "StaleOp")
@shows(CANCEL, 409, "NotTheOwner")
@shows(CANCEL, 409, "NotCancellable")
async def test_only_the_owner_of_an_open_job_cancels_it_in_time(
    client: Party, stranger: Party, provider: Party, stage: Stage
) -> None:
    job, claimed = [(await client.post())["job_id"] for _ in range(2)]
    assert (await provider.run(provider.claim(claimed))).status_code == 201
    unknown = "0x" + "12" * 32
    now = int(time.time())
    for path, body, code in (
        (job, client.cancel(job, now - 700), "StaleOp"),
        (job, client.cancel(job, now + 700), "StaleOp"),
        (job, stranger.cancel(job), "NotTheOwner"),
        (unknown, client.cancel(unknown), "NotTheOwner"),
        (job, client.cancel(job) | {"signature": "0x" + "00" * 65}, "NotTheOwner"),
        (claimed, client.cancel(claimed), "NotCancellable"),
    ):
        answer = await stage.http.post(f"/v1/jobs/{path}/cancel", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)
    assert await stage.fetchval("select count(*) from relays where kind = 'cancel'") == 0


@shows(CANCEL, 409, CONTRACT_ERROR)
async def test_chain_whose_clock_differs_refuses_by_name(client: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    await stage.world.anvil.call("evm_increaseTime", 5000)
    await stage.world.anvil.call("evm_mine")
    answer = await stage.http.post(f"/v1/jobs/{job}/cancel", json=client.cancel(job))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "StaleOp")


@shows(CANCEL, 413, "body_too_large")
@shows_relay_ends(CANCEL)
@shows(CANCEL, 503, "chain_unreachable")
@shows(CANCEL, 503, "job_read")
async def test_trouble_on_the_way_of_a_cancel(client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    job = (await client.post())["job_id"]
    path = f"/v1/jobs/{job}/cancel"
    assert (await stage.http.post(path, content=b" " * 8193)).status_code == 413
    with stage.node.answering(unreachable):
        assert (await stage.http.post(path, json=client.cancel(job))).json()["error"]["type"] == "chain_unreachable"
    with stage.node.answering(node_error(view("job(bytes32)"))):
        assert (await stage.http.post(path, json=client.cancel(job))).json()["error"]["code"] == "job_read"
    await relay_ends.check_each_end(monkeypatch, lambda: stage.http.post(path, json=client.cancel(job)))
