"""Tokens whose issuer pauses them or blacklists an account, and payers that delegate to code. Claims are refused, and
every exit continues as credit."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import attrs
import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address

from common.scalars import base64_of
from devnet.anvil import CHAIN_ID
from devnet.contracts import SigningNode, connect_to_chain, contract_at, deploy_all
from devnet.market import open_market
from devnet.world import World
from tests.integration.coordinatord.faults.market_setup import MarketSetup
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage, configured, staged
from tests.support.invariants.funds import read_uint

SLA = 60
CLAIMED = 1


@attrs.frozen
class IssuedTokenMarket:
    """Running market whose token has an issuer, with a client and a signed-in provider."""

    setup: MarketSetup
    stage: Stage
    client: Party
    provider: Party


async def issuer(world: World, method: str, *arguments: object) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        contract = contract_at(chain, "IssuedToken", world.market.token)
        await chain.send(contract, world.wallets.admin.address, method, *arguments)


async def until_ended(stage: Stage, job: str) -> None:
    with anyio.fail_after(60):
        while (await stage.http.get(f"/v1/jobs/{job}")).json()["svc"]["state"] == CLAIMED:  # noqa: ASYNC110 - the index tells nobody but those who ask
            await anyio.sleep(0.05)


@pytest.fixture
async def issued_token_market(world: World, database_url: str) -> AsyncIterator[IssuedTokenMarket]:
    """Deploy a second market on the same node, whose token has an issuer.

    Start its coordinator, and sign its provider in.
    """
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        deployed = await deploy_all(chain, world.wallets, issued_token=True)
        issued_world = attrs.evolve(world, market=await open_market(deployed, world.wallets))
    async with staged(issued_world, configured(issued_world, database_url), []) as stage:
        setup = MarketSetup(issued_world, database_url)
        provider = setup.party(stage.http, "provider")
        await provider.sign_in("provider")
        yield IssuedTokenMarket(setup, stage, setup.party(stage.http), provider)


async def refused(provider: Party, job: str) -> object:
    answer = await provider.run(provider.claim(job))
    return answer.status_code, answer.json().get("reason")


@pytest.mark.long
async def test_life_of_a_job_with_every_trouble_that_an_issuer_makes(issued_token_market: IssuedTokenMarket) -> None:
    setup, stage = issued_token_market.setup, issued_token_market.stage
    client, provider = issued_token_market.client, issued_token_market.provider
    world, book = setup.world, setup.book
    owner = to_checksum_address(client.address)

    async def credit() -> int:
        return await read_uint(stage.ground.rpc, book.job_registry, "credit(address)", client.wallet.address)

    settled, failed, reclaimed, later = [str((await client.post(sla_secs=SLA))["job_id"]) for _ in range(4)]
    for job in (settled, failed, reclaimed):
        assert (await provider.run(provider.claim(job))).status_code == 201
    amount = await read_uint(stage.ground.rpc, book.job_registry, "escrowed()") // 3
    await issuer(world, "blacklist", owner)
    assert await refused(provider, later) == (409, "PaymentRefused")
    assert (await provider.run(provider.settle(settled, 10, result=base64_of(b"result")))).status_code == 201
    refund = await credit()
    assert 0 < refund < amount
    await issuer(world, "pause")
    assert await refused(provider, later) == (409, "PaymentRefused")
    assert (await provider.run(provider.fail(failed))).status_code == 201
    assert await credit() == refund + amount
    await world.anvil.call("evm_increaseTime", SLA + 1)
    await world.anvil.call("evm_mine")
    await until_ended(stage, reclaimed)  # by the coordinator's own worker
    owed = await credit()
    assert owed == refund + 2 * amount
    assert await setup.violations() == []
    await issuer(world, "unpause")
    await issuer(world, "unBlacklist", owner)
    before = await read_uint(stage.ground.rpc, book.paytoken, "balanceOf(address)", client.wallet.address)
    async with connect_to_chain(world.anvil.rpc_url) as chain:  # sent by an unrelated account, paid to the party
        jobs = contract_at(chain, "JobRegistry", world.market.jobs)
        await chain.send(jobs, world.wallets.admin.address, "withdraw", owner)
        await chain.send(jobs, world.wallets.admin.address, "withdraw", world.wallets.treasury.address)
    assert (
        await read_uint(stage.ground.rpc, book.paytoken, "balanceOf(address)", client.wallet.address) == before + owed
    )
    assert await credit() == 0
    assert (await provider.run(provider.claim(later))).status_code == 201
    assert await setup.violations() == []


async def test_payer_delegating_to_code_is_refused_until_undone(issued_token_market: IssuedTokenMarket) -> None:
    world, stage = issued_token_market.setup.world, issued_token_market.stage
    client, provider = issued_token_market.client, issued_token_market.provider
    job = str((await client.post())["job_id"])
    submission = await client.paid()
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        await delegate(chain, world, client, world.market.token)
        simulated = await stage.http.post("/evm/simulate/claim", json={"job_id": job, "address": provider.address})
        assert simulated.json() == {"ok": True}  # simulation checks job and provider, not the payment
        assert await refused(provider, job) == (409, "PayerHasCode")
        answer = await stage.http.post("/v1/jobs", json=submission)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "payer_has_code")
        await delegate(chain, world, client, "0x" + "00" * 20)
    assert (await provider.run(provider.claim(job))).status_code == 201


async def delegate(chain: SigningNode, world: World, client: Party, code: str) -> None:
    """Send a transaction of type 4, paid for by another account."""
    web3, sender = chain.web3, world.wallets.admin
    owner = to_checksum_address(client.address)
    authorization = Account.sign_authorization(
        {
            "chainId": CHAIN_ID,
            "address": bytes.fromhex(code[2:]),
            "nonce": await web3.eth.get_transaction_count(owner),
        },
        next(w.private_key for w in world.wallets.wallets if w.address == owner),
    )
    transaction: dict[str, Any] = {
        "type": 4,
        "chainId": CHAIN_ID,
        "nonce": await web3.eth.get_transaction_count(to_checksum_address(sender.address)),
        "to": to_checksum_address(sender.address),
        "value": 0,
        "gas": 200_000,
        "maxFeePerGas": 10**11,
        "maxPriorityFeePerGas": 10**9,
        "authorizationList": [authorization],
    }
    signed = Account.sign_transaction(transaction, sender.private_key)
    receipt = await web3.eth.wait_for_transaction_receipt(await web3.eth.send_raw_transaction(signed.raw_transaction))
    assert receipt["status"] == 1
    assert bool(await web3.eth.get_code(owner)) == any(bytes.fromhex(code[2:]))
