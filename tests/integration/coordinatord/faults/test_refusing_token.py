"""The token's issuer pauses the token or blacklists an account. Claims are refused, and every exit continues as
credit."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from common.address_book import AddressBook
from common.scalars import base64_of
from devnet.contracts import connect_to_chain, contract_at
from devnet.world import World
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.stage import Stage, configured, staged
from tests.support.invariants.funds import read_uint

pytestmark = pytest.mark.anyio

SLA = 60
CLAIMED = 1
Refusing = Callable[[World, Party], AbstractAsyncContextManager[None]]


@pytest.fixture
async def stage(world: World, database_url: str) -> AsyncIterator[Stage]:
    async with staged(world, configured(world, database_url), []) as stage:
        yield stage


@pytest.fixture
def client(stage: Stage, world: World, book: AddressBook) -> Party:
    wallet = world.wallets.with_role("client")[0]
    return Party(wallet_of(wallet), stage.ground.domains, book.job_registry, stage.http, wallet.box_key)


@pytest.fixture
async def provider(stage: Stage, world: World, book: AddressBook) -> Party:
    wallet = world.wallets.with_role("provider")[0]
    provider = Party(wallet_of(wallet), stage.ground.domains, book.job_registry, stage.http, wallet.box_key)
    await provider.sign_in("provider")
    return provider


@asynccontextmanager
async def paused(world: World, _owner: Party) -> AsyncIterator[None]:
    await issuer(world, "pause")
    yield
    await issuer(world, "unpause")


@asynccontextmanager
async def blacklisted(world: World, owner: Party) -> AsyncIterator[None]:
    await issuer(world, "setBlacklisted", checksummed(world, owner), True)
    yield
    await issuer(world, "setBlacklisted", checksummed(world, owner), False)


def checksummed(world: World, party: Party) -> str:
    return next(w.address for w in world.wallets.wallets if w.address.lower() == party.address)


async def issuer(world: World, method: str, *arguments: object) -> None:
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        await chain.send(
            contract_at(chain, "DevToken", world.market.token), world.wallets.admin.address, method, *arguments
        )


async def claimed(client: Party, provider: Party) -> str:
    job = str((await client.post(sla_secs=SLA))["job_id"])
    assert (await provider.run(provider.claim(job))).status_code == 201
    return job


@pytest.mark.long
@pytest.mark.parametrize("refusing", [paused, blacklisted])
async def test_token_that_refuses_the_owner_stops_claims_and_no_exit(
    *,
    stage: Stage,
    world: World,
    database_url: str,
    book: AddressBook,
    client: Party,
    provider: Party,
    refusing: Refusing,
) -> None:
    to_settle, to_fail, to_reclaim = [await claimed(client, provider) for _ in range(3)]
    to_claim = str((await client.post(sla_secs=SLA))["job_id"])
    amount = await read_uint(stage.ground.rpc, book.job_registry, "escrowed()") // 3

    async def credit_of_owner() -> int:
        return await read_uint(stage.ground.rpc, book.job_registry, "credit(address)", client.wallet.address)

    async with refusing(world, client):
        refused = await provider.run(provider.claim(to_claim))
        assert (refused.status_code, refused.json()) == (409, {"ok": False, "reason": "PaymentRefused"})
        settled = await provider.run(provider.settle(to_settle, 10, result=base64_of(b"result")))
        assert settled.status_code == 201
        refund = await credit_of_owner()
        assert 0 < refund < amount
        assert (await provider.run(provider.fail(to_fail))).status_code == 201
        assert await credit_of_owner() == refund + amount
        await world.anvil.call("evm_increaseTime", SLA + 1)
        await world.anvil.call("evm_mine")
        await until_ended(stage, to_reclaim)  # by the coordinator's own worker
        assert await credit_of_owner() == refund + 2 * amount
        assert await all_violations(database_url, world.anvil.rpc_url, book) == []
    owner = checksummed(world, client)
    async with connect_to_chain(world.anvil.rpc_url) as chain:
        await chain.send(contract_at(chain, "JobRegistry", world.market.jobs), owner, "withdraw", owner)
    assert await credit_of_owner() == 0
    assert await all_violations(database_url, world.anvil.rpc_url, book) == []


async def until_ended(stage: Stage, job: str) -> None:
    with anyio.fail_after(60):
        while (await stage.http.get(f"/v1/jobs/{job}")).json()["svc"]["state"] == CLAIMED:  # noqa: ASYNC110 - the index tells nobody but those who ask
            await anyio.sleep(0.05)
