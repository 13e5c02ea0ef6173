"""The token's issuer stops everything, or shuts one account out: claims are refused, every exit goes on by credit."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from common.address_book import AddressBook
from common.quotes import Terms, quote
from devnet.contracts import at, connected
from devnet.world import World
from tests.integration.coordinatord.api.party import Party, wallet_of
from tests.integration.coordinatord.api.stage import Stage, configured, staged
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.invariants.funds import read_uint

pytestmark = pytest.mark.anyio

SLA = 60


@pytest.fixture
async def stage(world: World, database_url: str) -> AsyncIterator[Stage]:
    async with staged(world, configured(world, database_url), []) as stage:
        yield stage


@pytest.fixture
def client(stage: Stage, world: World, book: AddressBook) -> Party:
    wallet = world.cast.with_role("client")[0]
    return Party(wallet_of(wallet), stage.ground.domains, book.job_registry, stage.http, wallet.box_key)


@pytest.fixture
async def provider(stage: Stage, world: World, book: AddressBook) -> Party:
    wallet = world.cast.with_role("provider")[0]
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
    await issuer(world, "setBlacklisted", at_checksum(world, owner), True)
    yield
    await issuer(world, "setBlacklisted", at_checksum(world, owner), False)


def at_checksum(world: World, party: Party) -> str:
    return next(w.address for w in world.cast.wallets if w.address.lower() == party.address)


async def issuer(world: World, method: str, *arguments: object) -> None:
    async with connected(world.anvil.rpc_url) as chain:
        await chain.send(at(chain, "DevToken", world.market.token), world.cast.admin.address, method, *arguments)


async def claimed(client: Party, provider: Party) -> str:
    job = str((await client.post(sla_secs=SLA))["job_id"])
    assert (await provider.run(provider.claim(job))).status_code == 200
    return job


async def settled(stage: Stage, provider: Party, job: str) -> None:
    answer = await provider.run(provider.settle(job, 10, result_cid=CID))
    assert answer.status_code == 200, answer.text


async def failed(stage: Stage, provider: Party, job: str) -> None:
    answer = await provider.run(provider.fail(job))
    assert answer.status_code == 200, answer.text


async def reclaimed(stage: Stage, provider: Party, job: str) -> None:
    """By the coordinator's own worker, when the window is over."""
    await stage.world.anvil.call("evm_increaseTime", SLA + 1)
    await stage.world.anvil.call("evm_mine")
