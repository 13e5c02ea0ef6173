"""The relayer's account loses its role and gets it back. No caller is blamed, and no op is lost."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import httpx
import pytest
from structlog.testing import capture_logs

from common.scalars import base64_of
from coordinatord.base.metrics import REGISTRY
from coordinatord.chain.relayer import worker
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, until

GRANT = Callable[[bool], Awaitable[None]]


@pytest.fixture
def stage_settings() -> dict[str, object]:
    return {"RELAY_QUEUE_TIMEOUT_MS": 1500}


@pytest.fixture
async def granted(world: World) -> AsyncIterator[GRANT]:
    """Grant or revoke the relayer's role in every registry."""
    book, relayer = world.market.address_book, world.wallets.with_role("relayer")[0].address
    async with connect_to_chain(world.anvil.rpc_url) as chain:

        async def grant(allowed: bool) -> None:
            for name in ("jobRegistry", "providerRegistry", "askRegistry"):
                contract = contract_at(chain, name[0].upper() + name[1:], book[name])
                await chain.send(contract, world.wallets.admin.address, "setRelayer", relayer, allowed)

        yield grant


def role_metric(world: World) -> float | None:
    account = world.wallets.with_role("relayer")[0].address.lower()
    return REGISTRY.get_sample_value("coordinatord_relayer_role", {"account": account})


async def test_missing_role_makes_unready_and_ops_retryable(
    stage: Stage, client: Party, granted: GRANT, world: World
) -> None:
    paid = await client.paid()
    assert (await stage.http.get("/readyz")).json().get("code") is None
    with capture_logs() as lines:
        await granted(False)
        unready = await until(lambda: stage.http.get("/readyz"), 503)
        await granted_in_metrics(world, 0)
        refused = await stage.http.post("/v1/jobs", json=paid)
        assert (await stage.http.get("/v1/models")).status_code == 200  # reads continue
    assert unready.json() | {"cursor": "", "head_block": "", "lag": ""} == {
        "ready": False,
        "reason": "ready",
        "code": "no_relayer_role",
        "cursor": "",
        "head_block": "",
        "lag": "",
    }
    assert_may_be_repeated(refused)
    [told] = [line for line in lines if line["event"] == "relayer role missing"]
    assert told["missing_in"][0] == "jobRegistry"
    assert "grant-relayer" in told["remedy"]

    await granted(True)
    await until(lambda: stage.http.get("/readyz"), 200)
    await granted_in_metrics(world, 1)
    assert (await stage.http.post("/v1/jobs", json=paid)).status_code == 201


async def test_queued_post_survives_the_loss_of_the_role(stage: Stage, client: Party, granted: GRANT) -> None:
    """The preflight passed, and the relayer finds the refusal."""
    paid = await client.paid()
    await granted(False)
    await until(lambda: stage.http.get("/readyz"), 503)
    stage.relaying._role = None  # submissions are accepted although the role is gone
    with stage.node.answering(passing_trial):
        refused = await stage.http.post("/v1/jobs", json=paid)
    assert_may_be_repeated(refused)
    assert await stage.fetchval("select count(*) from relays where state = 'refused'") == 0


async def test_settle_outlives_the_queue_timeout_without_role(
    stage: Stage, client: Party, provider: Party, granted: GRANT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relayer signs the queued settle when it learns of the role, without a repeated request."""
    monkeypatch.setattr(worker, "_QUEUE_POLL_INTERVAL_S", 600)
    job = str((await client.post())["job_id"])
    other = str((await client.post())["job_id"])
    third = str((await client.post())["job_id"])
    for one in (job, other):
        assert (await provider.run(provider.claim(one))).status_code == 201
    uploaded = (await provider.upload("result", b"sealed")).json()["svc"]["cid"]
    await granted(False)
    await until(lambda: stage.http.get("/readyz"), 503)

    # Ops that free money need no role, and continue.
    assert (await provider.run(provider.fail(other))).status_code == 201
    assert (await stage.http.post(f"/v1/jobs/{third}/cancel", json=client.cancel(third))).status_code == 200
    assert_may_be_repeated(await provider.run(provider.settle(job, result=base64_of(b"inline"))))

    settle = provider.settle(job, result_cid=uploaded)
    assert_may_be_repeated(await provider.run(settle))
    stage.relaying._queue_timeout_ms = 60_000  # the response now depends on the machine's speed
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(granted, True)
        settled = await provider.run(settle)
    assert settled.status_code == 201, settled.text
    assert await stage.fetchval("select count(*) from relays where kind = 'settle' and state = 'mined'") == 1


async def granted_in_metrics(world: World, value: float) -> None:
    with anyio.fail_after(60):
        while role_metric(world) != value:  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.05)


def passing_trial(request: httpx.Request) -> httpx.Response | None:
    """Answer the submission's only request as if the account had its role."""
    if b"eth_getCode" not in request.content:
        return None
    calls = json.loads(request.content)
    answers = []
    for call in calls:
        result = "0x"
        if call["method"] == "eth_call":
            result = "0x" + (10**12).to_bytes(32, "big").hex() if "from" not in call["params"][0] else "0x"
            if call["params"][0]["data"][:10] != "0x70a08231" and "from" not in call["params"][0]:
                result = "0x" + (1).to_bytes(32, "big").hex()
        answers.append({"jsonrpc": "2.0", "id": call["id"], "result": result})
    return httpx.Response(200, json=answers)


def assert_may_be_repeated(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.headers["x-svc-retryable"]) == (503, "true"), answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("relay_unavailable", "relay_queue_timeout")
