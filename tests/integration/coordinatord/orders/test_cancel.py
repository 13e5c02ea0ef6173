import time

import pytest

from common.scalars import hex_of
from coordinatord.api.book.posted_jobs_sql import read_posted_terms
from coordinatord.chain.contracts import job_registry
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.node_faults import node_error, view
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.specification import CONTRACT_ERROR
from tests.integration.coordinatord.scene.stage import Stage
from tests.integration.coordinatord.scene.unmined import mined_again, no_blocks, until_true

pytestmark = pytest.mark.anyio

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


@shows(CANCEL, 400, "invalid_request_error")
async def test_malformed_cancel_names_the_field(client: Party, stage: Stage) -> None:
    job = "0x" + "12" * 32
    for path, changed, param in (
        ("/v1/jobs/0x12/cancel", {}, "id"),
        (f"/v1/jobs/{job}/cancel", {"issued_at": "soon"}, "issued_at"),
        (f"/v1/jobs/{job}/cancel", {"signature": "0x12"}, "signature"),
    ):
        answer = await stage.http.post(path, json=client.cancel(job) | changed)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


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
