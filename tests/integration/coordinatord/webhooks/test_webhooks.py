"""Webhooks for their owner, from the route to the delivery of changes of a job and a batch."""

import json
import re
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import httpx
import pytest

from common.scalars import base64_of
from common.webhooks import secret_text, verify
from coordinatord.base.clock import system_clock
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.new_wallets import fund, wallet_with
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Stage, until
from tests.integration.coordinatord.webhooks.receiver import Got, Receiver, receiving
from tests.support.programs.found import node

PAGE = Path(__file__).parents[4] / "docs/developers/webhooks.md"


@pytest.fixture
def stage_settings(request: pytest.FixtureRequest) -> dict[str, object]:
    return getattr(request, "param", {"WEBHOOKS_KEY": "5e" * 32, "WEBHOOKS_PRIVATE": "allow"})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


def types(got: list[Got]) -> list[str]:
    return [json.loads(each.body)["type"] for each in got]


async def add(stage: Stage, owner: Party, **body: object) -> dict[str, object]:
    answer = await stage.http.post("/v1/webhooks", json=body, headers=owner.authorization)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    added: dict[str, object] = answer.json()
    return added


@shows("POST /v1/webhooks", 200)
@shows("GET /v1/webhooks", 200)
async def test_page_examples_verify_a_jobs_messages(
    client: Party, provider: Party, stage: Stage, receiver: Receiver, tmp_path: Path
) -> None:
    await client.sign_in()
    endpoint = await add(stage, client, url=receiver.url)
    assert endpoint["status"] == "new"
    assert endpoint["events"] == []
    job = (await client.post())["job_id"]
    await provider.run(provider.claim(job))
    await provider.run(provider.settle(job, result=base64_of(b"sealed result")))
    got = await receiver.heard(3)
    assert sorted(types(got)) == ["job.claimed", "job.posted", "job.settled"]
    assert {json.loads(each.body)["data"]["job_id"] for each in got} == {job}
    secret = str(endpoint["secret"])
    for each in got:
        assert verify(secret, each.headers, each.body, system_clock()) == each.id
    _by_python(secret, got[0])
    await anyio.to_thread.run_sync(_by_node, secret, got[0], tmp_path)
    with anyio.fail_after(20):
        while True:
            (listed,) = (await stage.http.get("/v1/webhooks", headers=client.authorization)).json()["data"]
            if listed["delivered"] == 3:
                break
            await anyio.sleep(0.05)
    assert "secret" not in listed
    assert (listed["status"], listed["last_status"], listed["waiting"]) == ("working", 200, 0)


def _example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def _by_python(secret: str, got: Got) -> None:
    page: dict[str, object] = {}
    exec(_example("python"), page)  # noqa: S102 - of our own page
    check = page["verify"]
    assert callable(check)
    assert check(secret, got.headers, got.body) == got.id
    for body, headers in _forged(got):
        with pytest.raises(ValueError, match=r"signed|replay"):
            check(secret, headers, body)


def _by_node(secret: str, got: Got, folder: Path) -> None:
    (folder / "verify.mjs").write_text(_example("js"))
    cases = [(got.body, got.headers), *_forged(got)]
    (folder / "cases.json").write_text(
        json.dumps([{"body": body.decode(), "headers": dict(headers)} for body, headers in cases])
    )
    (folder / "run.mjs").write_text(
        'import { readFileSync } from "node:fs"; import { verify } from "./verify.mjs";'
        "for (const { headers, body } of JSON.parse(readFileSync('cases.json')))"
        "  try { console.log(verify(process.argv[2], headers, Buffer.from(body))); }"
        "  catch (error) { console.log('refused'); }"
    )
    runtime = node()
    assert runtime is not None, "node is missing: run `make setup`"
    ran = subprocess.run([runtime, "run.mjs", secret], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [got.id, "refused", "refused", "refused"]


def _forged(got: Got) -> list[tuple[bytes, Mapping[str, str]]]:
    old = str(int(got.headers["webhook-timestamp"]) - 301)
    return [
        (got.body + b" ", got.headers),
        (got.body, {**got.headers, "webhook-timestamp": old}),
        (got.body, {**got.headers, "webhook-signature": "v1," + "A" * 43 + "="}),
    ]


async def test_batch_changes_and_wanted_jobs_are_delivered(
    batching: Batching, provider: Party, stage: Stage, receiver: Receiver
) -> None:
    await add(stage, batching.owner, url=receiver.url, events=["batch.completed", "batch.in_progress"])
    (line,) = batching.submitter.lines(1)
    batch = await batching.create(line)
    await until(lambda: stage.http.get(f"/v1/jobs/{line['job_id']}"), 200)
    await provider.run(provider.claim(line["job_id"]))
    await provider.run(provider.settle(line["job_id"], result=base64_of(b"sealed result")))
    got = await receiver.heard(2)
    ended = await batching.until(batch["id"], status="completed")
    assert types(got) == ["batch.in_progress", "batch.completed"]
    assert json.loads(got[0].body)["data"]["request_counts"] is None
    assert json.loads(got[1].body)["data"] == {
        "id": batch["id"],
        "status": "completed",
        "request_counts": {"completed": 1, "failed": 0, "total": 1},
        "output_file_id": ended["output_file_id"],
        "error_file_id": None,
    }


@shows("POST /v1/webhooks/{id}/test", 200)
@shows("POST /v1/webhooks/{id}/test", 400, "webhook_disabled")
@shows("POST /v1/webhooks/{id}/test", 404, "not_found")
@shows("POST /v1/webhooks/{id}/test", 429, "busy")
@shows("DELETE /v1/webhooks/{id}", 200)
@shows("DELETE /v1/webhooks/{id}", 404, "not_found")
async def test_endpoint_is_tested_and_removed_by_its_owner_alone(
    client: Party, stranger: Party, stage: Stage, receiver: Receiver
) -> None:
    await client.sign_in()
    await stranger.sign_in()
    mine = secret_text(b"s" * 32)
    endpoint = await add(stage, client, url=receiver.url, events=["job.settled"], secret=mine)
    assert endpoint["secret"] == mine
    path = f"/v1/webhooks/{endpoint['id']}"
    for method, where in (("POST", f"{path}/test"), ("DELETE", path)):
        assert (await stage.http.request(method, where, headers=stranger.authorization)).status_code == 404
    assert (await stage.http.get("/v1/webhooks", headers=stranger.authorization)).json()["data"] == []

    receiver.status = 500
    tested = await stage.http.post(f"{path}/test", headers=client.authorization)
    assert tested.status_code == 200
    (got,) = await receiver.heard(1)
    assert got.id == tested.json()["id"]
    assert verify(mine, got.headers, got.body, system_clock()) == got.id
    assert json.loads(got.body)["data"] == {"webhook_id": endpoint["id"]}
    assert (await stage.http.post(f"{path}/test", headers=client.authorization)).status_code == 429

    await stage.execute("update webhooks set disabled_at = now(), disabled_because = 'gone'")
    assert (await stage.http.post(f"{path}/test", headers=client.authorization)).status_code == 400
    removed = await stage.http.delete(path, headers=client.authorization)
    assert removed.json() == {"id": endpoint["id"], "object": "webhook.removed"}
    assert (await stage.http.delete(path, headers=client.authorization)).status_code == 404
    assert await stage.fetchval("select count(*) from webhook_messages") == 0


@shows("POST /v1/webhooks", 400, "webhooks_need_funds")
async def test_webhooks_are_for_wallets_with_tokens_or_a_settled_job(stage: Stage) -> None:
    empty = await wallet_with(stage, 0)
    await empty.sign_in()
    body = {"url": "https://hooks.example.org/"}

    async def add() -> httpx.Response:
        return await stage.http.post("/v1/webhooks", json=body, headers=empty.authorization)

    refused = await add()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "webhooks_need_funds")
    await fund(stage, empty, 1)
    assert (await add()).status_code == 200


@shows("POST /v1/webhooks", 400, "too_many_webhooks")
@shows("POST /v1/webhooks", 400, "invalid_request_error")
@shows("POST /v1/webhooks", 413, "body_too_large")
async def test_what_cannot_be_added_is_refused(client: Party, stage: Stage) -> None:
    await client.sign_in()
    url = "https://hooks.example.org/"
    for body, param in (
        ({}, "url"),
        ({"url": "ftp://hooks.example.org"}, "url"),
        ({"url": url, "events": ["job.eaten"]}, "events[0]"),
        ({"url": url, "secret": "word"}, "secret"),
    ):
        refused = await stage.http.post("/v1/webhooks", json=body, headers=client.authorization)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param
    large = await stage.http.post("/v1/webhooks", content=b" " * (2**20 + 1), headers=client.authorization)
    assert large.status_code == 413
    async with anyio.create_task_group() as tasks:  # the limit also covers concurrent requests
        for _ in range(14):
            tasks.start_soon(lambda: stage.http.post("/v1/webhooks", json={"url": url}, headers=client.authorization))
    assert await stage.fetchval("select count(*) from webhooks") == 10
    refused = await stage.http.post("/v1/webhooks", json={"url": url}, headers=client.authorization)
    assert refused.json()["error"]["code"] == "too_many_webhooks"


@pytest.mark.parametrize("stage_settings", [{"WEBHOOKS_KEY": "5e" * 32}], indirect=True)
async def test_private_addresses_are_refused_unless_allowed(client: Party, stage: Stage, receiver: Receiver) -> None:
    await client.sign_in()
    for url in (receiver.url, "https://127.0.0.1/", "https://hooks.example.org:8443/"):
        refused = await stage.http.post("/v1/webhooks", json={"url": url}, headers=client.authorization)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "url")
    # A name can be checked only after its lookup, so the endpoint is added, but nothing is posted.
    await add(stage, client, url="https://localhost/")
    await client.post()
    with anyio.fail_after(20):
        while await stage.fetchval("select failing_since is null from webhooks"):  # noqa: ASYNC110 - no event
            await anyio.sleep(0.05)
    assert await stage.fetchval("select last_status is null from webhooks")


@pytest.mark.parametrize("stage_settings", [{}], indirect=True)
@shows("POST /v1/webhooks", 403, "webhooks_unavailable")
@shows("GET /v1/webhooks", 403, "webhooks_unavailable")
@shows("DELETE /v1/webhooks/{id}", 403, "webhooks_unavailable")
@shows("POST /v1/webhooks/{id}/test", 403, "webhooks_unavailable")
async def test_without_a_key_there_are_no_webhooks(client: Party, stage: Stage) -> None:
    await client.sign_in()
    for method, path in (
        ("POST", "/v1/webhooks"),
        ("GET", "/v1/webhooks"),
        ("DELETE", "/v1/webhooks/x"),
        ("POST", "/v1/webhooks/x/test"),
    ):
        answer = await stage.http.request(
            method, path, json={"url": "https://hooks.example.org/"}, headers=client.authorization
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "webhooks_unavailable")


async def test_janitor_removes_dead_endpoints(client: Party, stage: Stage) -> None:
    await client.sign_in()
    for path in ("never", "long", "kept"):
        await add(stage, client, url=f"https://hooks.example.org/{path}")
    await stage.execute("update webhooks set created_at = now() - interval '8 days' where url like '%never'")
    await stage.execute(
        "update webhooks set delivered = 1, disabled_because = 'gone',"
        " disabled_at = now() - interval '31 days' where url like '%long'"
    )
    await stage.sweep()
    assert await stage.fetchval("select array_agg(url) from webhooks") == ["https://hooks.example.org/kept"]
