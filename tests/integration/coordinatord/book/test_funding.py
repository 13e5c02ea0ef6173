"""Jobs with failing payments are not leased."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from common.eip712 import digest
from common.keccak import keccak256
from common.secp256k1 import Wallet
from devnet.contracts import SigningNode, connect_to_chain, contract_at
from tests.integration.coordinatord.book.test_polls import poll
from tests.integration.coordinatord.scene.faults import unreachable
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, until

pytestmark = pytest.mark.anyio

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


async def test_node_that_does_not_answer_holds_no_poll_up(client: Party, provider: Party, stage: Stage) -> None:
    job = (await client.post())["job_id"]

    def calls_fail(request: httpx.Request) -> httpx.Response | None:
        asks_head_too = b"eth_blockNumber" in request.content  # readiness reads role and head in one batch
        return unreachable(request) if b"eth_call" in request.content and not asks_head_too else None

    with stage.node.answering(calls_fail):
        assert await poll(provider, POLL) == [job]


async def test_provider_is_leased_no_more_than_it_may_claim(
    client: Party, provider: Party, stage: Stage, party: Any
) -> None:
    jobs = [(await client.post())["job_id"] for _ in range(3)]
    await stage.execute("update providers set requested = 2, ceiling = 2, reputation = 1000 where provider_id = 1")
    assert await poll(provider, POLL) == jobs[:2]
    await stage.execute("delete from leases")
    await stage.execute("update providers set active_jobs = 2 where provider_id = 1")
    assert await poll(provider, POLL) == []
    await stage.execute("update providers set active_jobs = 0, listed = false where provider_id = 1")
    assert await poll(provider, POLL) == []
    await stage.execute("update providers set listed = true, allow_all_models = false where provider_id = 1")
    await stage.execute("delete from provider_models where provider_id = 1")
    assert await poll(provider, POLL) == []
    await stage.execute("insert into provider_models values (1, 1)")
    assert await poll(provider, POLL) == jobs[:2]
