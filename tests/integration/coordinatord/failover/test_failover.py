"""Coordinator and provider at work while the primary is lost and its standby promoted."""

import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import asyncpg
import httpx
import pytest

from common.address_book import AddressBook
from coordinatord.storage.database.epoch import TIMELINE
from devnet.accounts import DevWallet
from devnet.world import World
from tests.integration.coordinatord.failover.servers import Pair, cut_replication, frozen, kill
from tests.integration.coordinatord.faults.invariants import all_violations
from tests.integration.coordinatord.faults.trading import TradingMarket, trading, until
from tests.integration.coordinatord.scene.party import Party

pytestmark = pytest.mark.anyio

PartyAt = Callable[[DevWallet, httpx.AsyncClient], Party]

WRITES_BACK_S = 2.0  # after the promotion
POSTED_AGAIN_S = 15.0  # on a machine that does other things
_BEGUN = f"select timeline = {TIMELINE} from server_epoch"  # noqa: S608 - constants
LOST_S = 3.0  # commits of so long that the asynchronous standby lacks
POST_PAUSE_S = 0.5
ORDERS = 60  # for each failover, more than are posted


def _primary_of(pair: Pair) -> str:
    """URL for the test's own reads, whichever server is the primary."""
    return f"{pair.url}?target_session_attrs=read-write"


@asynccontextmanager
async def _buying(market: TradingMarket, clients: int) -> AsyncIterator[None]:
    """Clients post until the block ends."""
    over = anyio.Event()

    async def post(bodies: list[dict[str, object]]) -> None:
        for body in bodies:
            if over.is_set():
                return
            await market.load.submit([body])
            await anyio.sleep(POST_PAUSE_S)

    async with anyio.create_task_group() as tasks:
        for n in range(clients):
            tasks.start_soon(post, market.bodies[n::clients])
        yield
        over.set()


async def _posted_again(market: TradingMarket) -> None:
    posted = len(market.load.posted)
    with anyio.fail_after(POSTED_AGAIN_S):
        await market.load.until_posted(posted + 1)


async def _written_again(pair: Pair) -> float:
    """Seconds until the first role has begun a term on the promoted server."""
    began = time.monotonic()
    connection = await asyncpg.connect(pair.primary.url())
    try:
        with anyio.fail_after(POSTED_AGAIN_S):
            while not await connection.fetchval(_BEGUN):  # noqa: ASYNC110 - the event is in another process
                await anyio.sleep(0.02)
    finally:
        await connection.close()
    return time.monotonic() - began


async def _settled(market: TradingMarket) -> None:
    with anyio.fail_after(90):
        for job in market.load.posted:

            async def is_settled(job: bytes = job) -> bool:
                answer = await market.http.get(f"/v1/jobs/0x{job.hex()}")
                return bool(answer.json().get("status") == "completed")

            await until(is_settled)
    assert market.load.unspecified() == []


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.long)])
async def test_synchronous_standby_takes_over_and_nothing_is_lost(
    world: World, book: AddressBook, party_at: PartyAt, tmp_path: Path, synchronous: Pair, *, times: int
) -> None:
    pair = synchronous
    async with trading(
        world, book, party_at, tmp_path, _primary_of(pair), coordinators_database_url=pair.url, orders=ORDERS * times
    ) as market:
        back = []
        async with _buying(market, 2):
            await market.load.until_posted(2)
            for _ in range(times):
                await pair.fail_over()
                back.append(await _written_again(pair))
                await _posted_again(market)
                await pair.rejoin()
                await _posted_again(market)
        await _settled(market)
        assert statistics.median(back) < WRITES_BACK_S
        violations = await all_violations(_primary_of(pair), world.anvil.rpc_url, book, promised=market.load.posted)
        assert violations == []


async def test_nothing_is_broadcast_that_a_frozen_standby_did_not_confirm(
    world: World, book: AddressBook, party_at: PartyAt, tmp_path: Path, synchronous: Pair
) -> None:
    """The primary is lost while its standby hangs, with commits that the standby never got."""
    pair = synchronous
    async with trading(
        world, book, party_at, tmp_path, _primary_of(pair), coordinators_database_url=pair.url
    ) as market:
        async with _buying(market, 2):
            await market.load.until_posted(2)
            with frozen(pair.standby):
                await anyio.sleep(LOST_S)
                kill(pair.primary)
            await pair.fail_over()
            await _posted_again(market)
        await _settled(market)
        violations = await all_violations(_primary_of(pair), world.anvil.rpc_url, book, promised=market.load.posted)
        assert violations == []
        assert "forgotten transaction adopted" not in market.coordinators_log.read_text()


async def test_asynchronous_standby_that_lacks_commits_repairs_what_it_can(
    world: World, book: AddressBook, party_at: PartyAt, tmp_path: Path, asynchronous: Pair
) -> None:
    """Transactions that were mined and that the standby never heard of are adopted. No 201 was a lie."""
    pair = asynchronous
    async with trading(
        world, book, party_at, tmp_path, _primary_of(pair), coordinators_database_url=pair.url
    ) as market:
        async with _buying(market, 2):
            await market.load.until_posted(2)
            await cut_replication(pair.standby)
            posted = len(market.load.posted)
            await anyio.sleep(LOST_S)
            assert len(market.load.posted) > posted
            await pair.fail_over()
            await _posted_again(market)
            await _posted_again(market)
        await _settled(market)
        violations = await all_violations(_primary_of(pair), world.anvil.rpc_url, book, promised=market.load.posted)
        assert violations == []
        log = market.coordinators_log.read_text()
        assert "forgotten transaction adopted" in log
        assert log.count("database promoted") == 1
