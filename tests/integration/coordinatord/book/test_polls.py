"""Polls through the routes: leases, waiting, and jobs with failing payments."""

from collections.abc import AsyncIterator
from functools import partial

import anyio
import httpx
import pytest

from common.eip712 import digest
from common.keccak import keccak256
from common.secp256k1 import Wallet
from coordinatord.base.metrics import REGISTRY
from devnet.contracts import SigningNode, connect_to_chain, contract_at
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.shows import shows
from tests.integration.coordinatord.scene.stage import Seen, Stage, until
from tests.integration.coordinatord.scene.streams import streams_of


async def poll(who: Party, query: str) -> list[str]:
    answer = await who.http.get(f"/evm/jobs?{query}", headers=who.authorization)
    assert answer.status_code == 200, answer.text
    return [job["job_id"] for job in answer.json()["jobs"]]


async def test_poll_leases_the_oldest_and_honours_order(client: Party, provider: Party) -> None:
    jobs = [(await client.post())["job_id"] for _ in range(3)]
    newest = "state=Open&model=1&order=newest"
    assert await poll(provider, f"{newest}&free=2") == jobs[1::-1]
    assert await poll(provider, f"{newest}&free=3") == jobs[::-1]
    assert await poll(provider, f"{newest}&free=3&limit=1&offset=1") == [jobs[1]]


async def test_lapsed_lease_goes_to_who_polls_next(client: Party, provider: Party, rival: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]
    assert await poll(provider, "state=Open&model=1&free=1") == [job]
    await stage.execute("update leases set expires_at = clock_timestamp() - interval '1 second'")
    assert await poll(rival, "state=Open&model=1&free=1") == [job]
    assert await poll(provider, "state=Open&model=1&free=1") == []


@shows("GET /evm/jobs", 401, "invalid_session")
@shows("GET /evm/jobs", 403, "not_registered")
@shows("GET /evm/jobs", 400, "invalid_request_error")
async def test_poll_needs_a_provider_session_state_and_model(client: Party, provider: Party, stage: Stage) -> None:
    await client.sign_in()
    whole = "state=Open&model=1&free=1"
    for who, query, status, told in (
        (None, whole, 401, "invalid_session"),
        (client, whole, 403, "not_registered"),
        (provider, "model=1&free=1", 400, "state"),
        (provider, "state=Claimed&model=1&free=1", 400, "state"),
        (provider, "state=Open&free=1", 400, "model"),
        (provider, "state=Open&model=777&free=1", 400, "model"),
        (provider, "state=Open&model=1&free=4294967296", 400, "free"),
        (provider, "state=Open&model=1&free=1&wait=31", 400, "wait"),
    ):
        headers = who.authorization if who is not None else {}
        answer = await stage.http.get(f"/evm/jobs?{query}", headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"] or error["param"]) == (status, told), query


async def test_session_is_ignored_without_free(provider: Party, stage: Stage) -> None:
    headers = {"authorization": "Bearer nonsense"}
    assert (await stage.http.get("/evm/jobs", headers=headers)).status_code == 200


async def test_polling_makes_a_provider_without_ask_a_candidate(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    await provider.publish(provider.asks(1, (1, 3600, 5, 7)))
    await rival.publish(rival.asks(2, (1, 3600, 4, 7)))
    probe = {"model_id": 1, "sla_secs": 3600, "units_in": 10, "units_out": 10}

    async def candidates(body: dict[str, object]) -> list[str]:
        answer = await stage.http.post("/v1/jobs", json=body)
        assert answer.status_code == 402
        return [candidate["provider_id"] for candidate in answer.json()["candidates"]]

    assert await candidates(probe) == []
    for who in (provider, rival):
        await poll(who, "state=Open&model=1&free=1")
    assert await candidates(probe) == ["2", "1"]
    assert await candidates(probe | {"designated": 1}) == ["1"]
    assert await candidates(probe | {"sla_secs": 60}) == []
    assert await candidates(client.order(rate_in=4, rate_out=7)) == ["2"]
    assert await candidates(client.order(rate_in=5, rate_out=7)) == ["2", "1"]
    assert await candidates(client.order(rate_in=3, rate_out=7)) == []
    await stage.execute("update liveness set seen_at = seen_at - interval '1 minute' where provider_id = 2")
    assert await candidates(probe) == ["1"]


WAITING = "/evm/jobs?state=Open&model=1&free=1&wait=30"


async def test_poll_that_waits_is_answered_with_the_first_job_for_it(
    client: Party, provider: Party, rival: Party, stage: Stage
) -> None:
    """Two polls wait. The job answers one of them, and the other continues to wait."""
    answered: dict[str, list[str]] = {}

    async def wait(name: str, who: Party, more: str = "") -> None:
        answer = await who.http.get(WAITING + more, headers=who.authorization)
        assert answer.status_code == 200, answer.text
        answered[name] = [job["job_id"] for job in answer.json()["jobs"]]

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "too dear", rival, "&min_rate_in=2000000")
            tasks.start_soon(wait, "first", provider)
            await waiting(stage, 2)
            cheap = (await client.post())["job_id"]
            with anyio.fail_after(15):
                while "first" not in answered:  # noqa: ASYNC110 - there is no event to wait for
                    await anyio.sleep(0.01)
            assert answered == {"first": [cheap]}
            dear = (await client.post(rate_in=3_000_000))["job_id"]
    assert answered == {"first": [cheap], "too dear": [dear]}
    assert await stage.fetchval("select count(*) from leases") == 2


async def test_provider_that_waits_is_live_until_it_is_answered(client: Party, provider: Party, stage: Stage) -> None:
    seen = "select extract(epoch from clock_timestamp() - seen_at)::float8 from liveness where provider_id = 1"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.http.get, WAITING)  # refused without a session, so no provider counts as live
        tasks.start_soon(partial(provider.http.get, WAITING, headers=provider.authorization))
        with anyio.fail_after(15):
            while await stage.fetchval(seen) is None:  # noqa: ASYNC110 - the table tells nobody
                await anyio.sleep(0.05)
        await stage.execute("update liveness set seen_at = seen_at - interval '1 hour'")
        with anyio.fail_after(15):
            while float(str(await stage.fetchval(seen))) > 60:  # noqa: ASYNC110 - the table tells nobody
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()


async def test_poll_whose_caller_is_gone_leases_nothing(
    client: Party, provider: Party, stage: Stage, seen: list[Seen]
) -> None:
    async with streams_of(stage, seen) as streams:
        with anyio.move_on_after(0.5):
            await streams.http.get(WAITING, headers=provider.authorization)
        await waiting(stage, 0)
        await client.post()
    assert await stage.fetchval("select count(*) from leases") == 0


async def waiting(stage: Stage, polls: int) -> None:
    """Wait until this many polls wait."""
    with anyio.fail_after(15):
        while REGISTRY.get_sample_value("coordinatord_event_listeners", {"kind": "poll"}) != polls:  # noqa: ASYNC110
            await anyio.sleep(0.01)


SMALL_ONLY = 4000  # between the cost of a job of one unit (2,003) and of a thousand units (5,075)
POLL = "state=Open&model=1&free=5"
_CANCEL_TYPE = keccak256(b"CancelAuthorization(address authorizer,bytes32 nonce)")


@pytest.fixture
async def chain(stage: Stage) -> AsyncIterator[SigningNode]:
    async with connect_to_chain(stage.world.anvil.rpc_url) as chain:
        yield chain


async def in_index(stage: Stage, chain: SigningNode) -> None:
    """Wait until the index has caught up with the chain."""
    head = await chain.web3.eth.block_number

    async def ask() -> httpx.Response:
        answer = await stage.http.get("/evm/jobs")
        return answer if int(answer.json()["as_of_block"]) >= head else httpx.Response(503)

    await until(ask, 200)


async def transfer(stage: Stage, chain: SigningNode, sender: str, to: str, amount: int) -> None:
    addresses = {wallet.address.lower(): wallet.address for wallet in stage.world.wallets.wallets}
    token = contract_at(chain, "DevToken", stage.world.market.token)
    await chain.send(token, addresses[sender], "transfer", addresses[to], amount)
    await in_index(stage, chain)


async def balance_of(stage: Stage, chain: SigningNode, address: str) -> int:
    token = contract_at(chain, "DevToken", stage.world.market.token)
    addresses = {wallet.address.lower(): wallet.address for wallet in stage.world.wallets.wallets}
    balance: int = await token.functions.balanceOf(addresses[address]).call()
    return balance


async def cancel_authorization(stage: Stage, chain: SigningNode, wallet: Wallet, job: str) -> None:
    nonce = bytes.fromhex(job[2:])
    separator = stage.ground.domains.token.separator
    signature = wallet.sign(digest(separator, keccak256(_CANCEL_TYPE + bytes(12) + wallet.address + nonce)))
    token = contract_at(chain, "DevToken", stage.world.market.token)
    owner = next(w.address for w in stage.world.wallets.wallets if w.address.lower() == "0x" + wallet.address.hex())
    parts = (signature[64], signature[:32], signature[32:64])
    await chain.send(token, stage.world.wallets.admin.address, "cancelAuthorization", owner, nonce, *parts)
    await in_index(stage, chain)


async def wait_is_over(stage: Stage) -> None:
    await stage.execute("update leases set expires_at = clock_timestamp() where provider_id = 0")


async def test_jobs_of_an_unfunded_owner_are_not_leased(
    client: Party, stranger: Party, provider: Party, stage: Stage, chain: SigningNode
) -> None:
    unfunded = [(await client.post())["job_id"] for _ in range(3)]
    small = (await client.post(units_in=1, units_out=1))["job_id"]
    funded = (await stranger.post())["job_id"]
    balance = await balance_of(stage, chain, client.address)
    moved = balance - SMALL_ONLY
    await transfer(stage, chain, client.address, stranger.address, moved)
    assert await poll(provider, POLL) == [small, funded]
    await transfer(stage, chain, stranger.address, client.address, moved)
    assert await poll(provider, POLL) == [small, funded]  # no provider polls again before the wait is over
    await wait_is_over(stage)
    assert await poll(provider, POLL) == [*unfunded, small, funded]


async def test_job_with_cancelled_authorization_is_not_leased(
    client: Party, provider: Party, stage: Stage, chain: SigningNode
) -> None:
    job, other = (await client.post())["job_id"], (await client.post())["job_id"]
    await cancel_authorization(stage, chain, client.wallet, job)
    assert await poll(provider, POLL) == [other]
    await wait_is_over(stage)
    assert await poll(provider, POLL) == [other]  # checked again, and delayed again
    await stage.sweep()
    assert await stage.fetchval("select unpaid from leases where provider_id = 0") == 2
    await stage.world.anvil.call("anvil_reorg", 1, [])
    await stage.world.anvil.call("evm_mine")
    await in_index(stage, chain)
    await wait_is_over(stage)
    assert await poll(provider, POLL) == [job, other]


async def test_claim_refused_for_payment_backs_off_leases(
    client: Party, provider: Party, stage: Stage, chain: SigningNode
) -> None:
    job = (await client.post())["job_id"]
    assert await poll(provider, POLL) == [job]  # funded when leased
    await cancel_authorization(stage, chain, client.wallet, job)
    waits = []
    for _ in range(3):
        refused = await provider.run(provider.claim(job))
        assert refused.json() == {"ok": False, "reason": "PaymentRefused"}
        assert await poll(provider, POLL) == []
        left = "select extract(epoch from expires_at - clock_timestamp()) from leases"
        waits.append(float(str(await stage.fetchval(left))))
        await wait_is_over(stage)
    assert [round(wait / 15) for wait in waits] == [1, 2, 4]
