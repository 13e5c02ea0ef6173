"""A market with a realistic token: behind a proxy, with a blacklist, a pause, and calls to accounts with code. Owners
delegate to code (EIP-7702) between their post and its claim."""

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address

from common.scalars import base64_of
from devnet.accounts import DevWallets
from devnet.anvil import CHAIN_ID, Anvil
from devnet.contracts import SigningNode, connect_to_chain, contract_at, deploy_all
from devnet.market import open_market
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.stage import Stage, configured, staged
from tests.support.invariants.funds import read_uint

pytestmark = pytest.mark.anyio


@pytest.fixture
async def issued_world(world: World, anvil: Anvil, wallets: DevWallets) -> World:
    """Another market on the same node."""
    async with connect_to_chain(anvil.rpc_url) as chain:
        return attrs.evolve(
            world, market=await open_market(await deploy_all(chain, wallets, issued_token=True), wallets)
        )


@pytest.fixture
async def stage(issued_world: World, database_url: str) -> AsyncIterator[Stage]:
    async with staged(issued_world, configured(issued_world, database_url), []) as stage:
        yield stage


def party(stage: Stage, world: World, role: str) -> Party:
    wallet = world.wallets.with_role(role)[0]
    registry = stage.ground.config.addresses.job_registry
    return Party(wallet_of(wallet), stage.ground.domains, registry, stage.http, wallet.box_key)


async def provider_of(stage: Stage, world: World) -> Party:
    provider = party(stage, world, "provider")
    await provider.sign_in("provider")
    return provider


async def issuer(world: World, method: str, *arguments: object) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        await chain.send(
            contract_at(chain, "IssuedToken", world.market.token), world.wallets.admin.address, method, *arguments
        )


async def refused(provider: Party, job: str) -> object:
    answer = await provider.run(provider.claim(job))
    return answer.status_code, answer.json().get("reason")


@pytest.mark.long
async def test_life_of_a_job_with_every_trouble_that_an_issuer_makes(
    issued_world: World, stage: Stage, database_url: str
) -> None:
    world, book = issued_world, stage.ground.config.addresses
    client, provider = party(stage, world, "client"), await provider_of(stage, world)
    owner = to_checksum_address(client.address)
    settled, failed, later = [str((await client.post())["job_id"]) for _ in range(3)]
    for job in (settled, failed):
        assert (await provider.run(provider.claim(job))).status_code == 201
    await issuer(world, "blacklist", owner)
    assert await refused(provider, later) == (409, "PaymentRefused")
    assert (await provider.run(provider.settle(settled, 10, result=base64_of(b"result")))).status_code == 201
    await issuer(world, "pause")
    assert (await provider.run(provider.fail(failed))).status_code == 201
    await issuer(world, "unpause")
    owed = await read_uint(stage.ground.rpc, book.job_registry, "credit(address)", client.wallet.address)
    assert owed > 0
    assert await all_violations(database_url, world.anvil.rpc_url, book) == []
    await issuer(world, "unBlacklist", owner)
    before = await read_uint(stage.ground.rpc, book.paytoken, "balanceOf(address)", client.wallet.address)
    async with connect_to_chain(world.anvil.rpc_url) as chain:  # sent by an unrelated account, paid to the party
        jobs = contract_at(chain, "JobRegistry", world.market.jobs)
        await chain.send(jobs, world.wallets.admin.address, "withdraw", owner)
        await chain.send(jobs, world.wallets.admin.address, "withdraw", world.wallets.treasury.address)
    assert (
        await read_uint(stage.ground.rpc, book.paytoken, "balanceOf(address)", client.wallet.address) == before + owed
    )
    assert (await provider.run(provider.claim(later))).status_code == 201
    assert await all_violations(database_url, world.anvil.rpc_url, book) == []


async def test_payer_delegating_to_code_is_refused_until_undone(issued_world: World, stage: Stage) -> None:
    world = issued_world
    client, provider = party(stage, world, "client"), await provider_of(stage, world)
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
