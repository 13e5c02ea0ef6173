import base64
import secrets
import time

import anyio
import attrs
import httpx
import pytest

from common.eip712 import struct_hash
from common.messages.jobs import Order
from common.scalars import base64_of, hex_of
from devnet.contracts import connect_to_chain, contract_at
from tests.integration.coordinatord.relayer.mining import mining_by_hand
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.faults import node_error, status, unreachable, view
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.shows import shows, shows_relay_ends
from tests.integration.coordinatord.scene.stage import Stage

OPS = "POST /evm/ops"
BURST = 64
QUEUE_DEPTH = 32


@shows(OPS, 201)
async def test_claim_and_settle_take_a_job_to_its_result(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    claimed = await provider.run(provider.claim(job))
    assert claimed.status_code == 201
    assert set(claimed.json()) == {"tx_hash", "status", "block_number"}
    running = (await stage.http.get(f"/v1/jobs/{job}")).json()
    assert (running["status"], running["svc"]["state"]) == ("in_progress", 1)
    assert int(running["in_progress_at"]) > 0

    result = b"sealed result"
    settled = await provider.run(provider.settle(job, result=base64_of(result)))
    assert settled.status_code == 201
    done = (await stage.http.get(f"/v1/jobs/{job}")).json()
    assert (done["status"], done["result_cid"]) == ("completed", settled.json()["result_cid"])
    assert (done["svc"]["state"], done["svc"]["ended_because"], done["svc"]["completion_tok"]) == (2, 1, "10")
    async with httpx.AsyncClient(trust_env=False) as gateway:
        fetched = await gateway.get(f"{stage.world.pins.gateway}/ipfs/{done['result_cid']}")
    assert fetched.content == result


async def test_claim_is_relayed_for_the_terms_that_it_names_only(client: Party, provider: Party, stage: Stage) -> None:
    """Before the claim arrives, the owner posts another order under the id offered to the provider."""
    offered = await client.paid()
    cheap = await client.paid(base64.b64decode(offered["container"]), rate_in=0, rate_out=0)
    assert cheap["job_id"] == offered["job_id"]
    assert (await stage.http.post("/v1/jobs", json=cheap)).status_code == 201
    job = offered["job_id"]
    refused = await provider.run({**provider.claim(job), "terms": terms_of(offered)})
    assert (refused.status_code, refused.json()["reason"]) == (409, "UnknownJob")
    assert await stage.fetchval("select count(*) from relays where kind = 'claim'") == 0
    assert (await stage.http.get(f"/v1/jobs/{job}")).json()["status"] == "queued"
    malformed = await provider.run({**provider.claim(job), "terms": "0x12"})
    assert (malformed.status_code, malformed.json()["error"]["param"]) == (400, "terms")
    assert (await provider.run({**provider.claim(job), "terms": terms_of(cheap)})).status_code == 201


def terms_of(body: Body) -> str:
    values = {field.name: int(body[field.name]) for field in attrs.fields(Order) if field.name != "c"}
    return hex_of(struct_hash(Order(c=bytes.fromhex(body["c"][2:]), **values)))


async def test_fail_ends_a_claimed_job(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    await provider.run(provider.claim(job))
    assert (await provider.run(provider.fail(job))).status_code == 201
    assert (await stage.http.get(f"/v1/jobs/{job}")).json()["status"] == "failed"


async def test_identity_and_capacity_show_on_the_provider(provider: Party, stage: Stage) -> None:
    box_key = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert (await provider.run(provider.set_identity(box_key, b'{"kind":"test"}'))).status_code == 201
    assert (await provider.run(provider.request_capacity(3))).status_code == 201
    ids = {operator.lower(): number for operator, number in stage.world.market.provider_ids.items()}
    row = (await stage.http.get(f"/evm/providers/{ids[provider.address]}")).json()
    assert row["box_key"] == hex_of(box_key)
    assert row["evidence"] == {"kind": "test"}
    assert row["capacity"] == "1"  # 500 · min(3, 128) / 1000


@shows(OPS, 400, "invalid_request_error")
@shows(OPS, 400, "result_required")
@shows(OPS, 400, "result_ambiguous")
@shows(OPS, 400, "unknown_result")
async def test_malformed_op_names_the_field(provider: Party) -> None:
    settle = provider.settle("0x" + "12" * 32, result="AAAA")
    for op, param, code in (
        ({}, "op", None),
        (settle | {"op": "steal"}, "op", None),
        (settle | {"job_id": "0x12"}, "job_id", None),
        (settle | {"completion_tok": -1}, "completion_tok", None),
        (settle | {"signature": "0x12"}, "signature", None),
        (settle | {"result": None}, "result", "result_required"),
        (settle | {"result": ""}, "result", "result_required"),
        (settle | {"result_cid": "bafy"}, "result_cid", "result_ambiguous"),
        (settle | {"result": None, "result_cid": "bafy"}, "result_cid", "unknown_result"),
        (provider.set_identity(bytes(32), b""), "box_key", None),  # anybody can open boxes for these keys
        (provider.set_identity(b"\1" + bytes(31), b""), "box_key", None),
    ):
        answer = await provider.run(op)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


async def test_op_needs_a_live_session_and_says_so_before_reading_it(provider: Party, stage: Stage) -> None:
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": f"Bearer svc_sess_{'A' * 43}"}):
        answer = await stage.http.post("/evm/ops", content=b"{", headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


@shows(OPS, 409)
async def test_refusal_by_the_chain_is_told_by_its_name(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    now = int(time.time())
    for op, reason in (
        (provider.claim(job, now - 700), "StaleOp"),
        (provider.claim("0x" + "12" * 32), "UnknownJob"),
        (provider.fail(job), "NotClaimed"),
        (provider.settle(job, result="AAAA"), "NotClaimed"),
        (provider.request_capacity(3, now + 90_000), "StaleOp"),
    ):
        answer = await provider.run(op)
        assert (answer.status_code, answer.json()) == (409, {"ok": False, "reason": reason})
        assert answer.headers["x-svc-retryable"] == "false"
    assert await stage.fetchval("select count(*) from objects where key like 'results/%'") == 0


@shows("POST /evm/simulate/claim", 200)
async def test_simulated_claim_names_the_first_failing_check(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]

    async def simulate(job_id: str, address: str) -> object:
        return (await stage.http.post("/evm/simulate/claim", json={"job_id": job_id, "address": address})).json()

    assert await simulate(job, provider.address) == {"ok": True}
    assert await simulate("0x" + "12" * 32, provider.address) == {"ok": False, "reason": "UnknownJob"}
    assert await simulate(job, client.address) == {"ok": False, "reason": "UnknownProvider"}


async def test_job_that_the_index_has_not_got_is_known_by_its_log(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    await stage.execute("delete from jobs")  # as during a rebuild
    body = {"job_id": job, "address": provider.address}
    assert (await stage.http.post("/evm/simulate/claim", json=body)).json() == {"ok": True}


@shows("POST /evm/simulate/claim", 400, "invalid_request_error")
@shows("POST /evm/simulate/claim", 503, "chain_unreachable")
@shows("POST /evm/simulate/claim", 503, "rate_limited")
@shows("POST /evm/simulate/claim", 503, "claim_simulate_read")
async def test_simulated_claim_that_cannot_be(stage: Stage) -> None:
    path, body = "/evm/simulate/claim", {"job_id": "0x" + "12" * 32, "address": "0x" + "34" * 20}
    assert (await stage.http.post(path, json=body | {"address": "me"})).json()["error"]["param"] == "address"
    with stage.node.answering(unreachable):
        assert (await stage.http.post(path, json=body)).json()["error"]["type"] == "chain_unreachable"
    with stage.node.answering(node_error(view("job(bytes32)"), -32005)):
        assert (await stage.http.post(path, json=body)).json()["error"]["code"] == "rate_limited"
    with stage.node.answering(node_error(view("job(bytes32)"))):
        assert (await stage.http.post(path, json=body)).json()["error"]["code"] == "claim_simulate_read"


@shows(OPS, 413, "body_too_large")
@shows_relay_ends(OPS)
@shows(OPS, 503, "chain_unreachable")
@shows(OPS, 503, "provider_id_read")
@shows(OPS, 503, "claim_simulate_read")
@shows(OPS, 503, "store_unavailable")
@shows(OPS, 503, "store_rejected")
async def test_trouble_on_the_way_of_an_op(
    client: Party, provider: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = (await client.post())["job_id"]
    too_large = await stage.http.post("/evm/ops", content=b" " * (20 * 2**20 + 1), headers=provider.authorization)
    assert too_large.status_code == 413
    with stage.node.answering(unreachable):
        assert (await provider.run(provider.claim(job))).json()["error"]["type"] == "chain_unreachable"
    with stage.node.answering(node_error(view("providerIdOf(address)"))):
        assert (await provider.run(provider.claim(job))).json()["error"]["code"] == "provider_id_read"
    with stage.node.answering(node_error(view("job(bytes32)"))):
        unknown = hex_of(secrets.token_bytes(32))
        assert (await provider.run(provider.claim(unknown))).json()["error"]["code"] == "claim_simulate_read"
    assert (await provider.run(provider.claim(job))).status_code == 201
    for rule, code in ((unreachable, "store_unavailable"), (status(403), "store_rejected")):
        with stage.store.answering(rule):
            answer = await provider.run(provider.settle(job, result="AAAA"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    message = await relay_ends.check_each_end(monkeypatch, lambda: provider.run(provider.fail(job)))
    assert f"/evm/jobs/{job}" in message


async def test_second_result_waits_for_a_settle_under_way(client: Party, provider: Party, stage: Stage) -> None:
    """The signature does not cover the content id. A client that copies the signature must not get another result
    settled."""
    job = (await client.post())["job_id"]
    assert (await provider.run(provider.claim(job))).status_code == 201
    settle = provider.settle(job, result=base64_of(b"the result"))
    answers: list[httpx.Response] = []

    async def run(op: Body) -> None:
        answers.append(await provider.run(op))

    async with mining_by_hand(stage.world.anvil), anyio.create_task_group() as callers:
        callers.start_soon(run, settle)
        signed = "select count(*) = 1 from relays where kind = 'settle' and state = 'signed'"
        while not await stage.fetchval(signed):  # noqa: ASYNC110 - the event is in the database
            await anyio.sleep(0.02)
        other = await provider.run({**settle, "result": base64_of(b"another result")})
        assert (other.status_code, other.json()["error"]["type"]) == (429, "busy")
        await stage.world.anvil.call("evm_mine")
    assert [answer.status_code for answer in answers] == [201]
    assert await stage.fetchval("select count(*) from relays where kind = 'settle'") == 1


async def test_settles_of_a_whole_block_share_the_next(client: Party, provider: Party, stage: Stage) -> None:
    """Like jobs claimed in one block that finish together, with the default queue depth."""
    await with_room_for_claims(stage, provider, BURST)
    jobs: list[str] = []
    queue = anyio.CapacityLimiter(QUEUE_DEPTH)

    async def post() -> None:
        async with queue:
            jobs.append((await client.post())["job_id"])

    async with anyio.create_task_group() as callers:
        for _ in range(BURST):
            callers.start_soon(post)
    await all_run(provider, [provider.claim(job) for job in jobs], queue)
    async with mining_by_hand(stage.world.anvil), anyio.create_task_group() as callers:
        settles = [provider.settle(job, result=base64_of(job.encode())) for job in jobs]
        callers.start_soon(all_run, provider, settles, anyio.CapacityLimiter(BURST))
        sent = (
            "select count(*) = $1 from relays r join relay_txs t on t.id = r.tx_id"
            " where r.kind = 'settle' and t.broadcast_at is not null"
        )
        while not await stage.fetchval(sent, BURST):  # noqa: ASYNC110 - the event is in the database
            await anyio.sleep(0.02)
        await stage.world.anvil.call("evm_mine")
    blocks = "select count(distinct t.block_number) from relay_txs t join relays r on r.tx_id = t.id where r.kind = $1"
    assert await stage.fetchval(blocks, "settle") == 1
    assert await stage.fetchval("select count(*) from objects where key like 'results/%' and attached") == BURST


async def all_run(provider: Party, ops: list[Body], limiter: anyio.CapacityLimiter) -> None:
    """Run all ops concurrently, as far as the limiter allows. Each must take effect."""
    answers: list[httpx.Response] = []

    async def run(op: Body) -> None:
        async with limiter:
            answers.append(await provider.run(op))

    async with anyio.create_task_group() as callers:
        for op in ops:
            callers.start_soon(run, op)
    assert [answer.status_code for answer in answers] == [201] * len(ops), answers[0].text


async def with_room_for_claims(stage: Stage, provider: Party, jobs: int) -> None:
    market, admin = stage.world.market, stage.world.wallets.admin.address
    (operator,) = [one for one in market.provider_ids if one.lower() == provider.address]
    async with connect_to_chain(stage.world.anvil.rpc_url) as chain:
        registry = contract_at(chain, "ProviderRegistry", market.providers)
        now = (await chain.web3.eth.get_block("latest"))["timestamp"] + 1
        await chain.send(registry, operator, "requestCapacity", 2 * jobs, now, b"")
        await chain.send(registry, admin, "setCeiling", market.provider_ids[operator], 2 * jobs)
