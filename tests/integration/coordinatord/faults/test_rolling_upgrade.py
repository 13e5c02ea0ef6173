"""Replace two coordinators over one database by the next release, one after the other, while jobs continue."""

from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest

from common.address_book import AddressBook
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.faults.trading import PartyAt
from tests.integration.coordinatord.faults.witnesses import at_work, posted_again
from tests.integration.coordinatord.scene.running import running
from tests.support.faults.next_release import ADDED

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NEXT_RELEASE = ("tests.support.faults.next_release",)
LINES = 12  # of each batch
_ADDED = "select array_agg(name order by number) from migrations where number >= 900"
_VALID = "select indisvalid from pg_index where indexrelid = 'relays_by_weight'::regclass"


async def test_rolling_upgrade_loses_and_refuses_nothing(
    world: World, database_url: str, book: AddressBook, party_at: PartyAt, tmp_path: Path
) -> None:
    async with AsyncExitStack() as processes:
        log = processes.enter_context((tmp_path / "others.log").open("wb")).fileno()
        async with at_work(world, book, party_at, tmp_path, database_url) as witnesses:
            market = witnesses.market
            settings = dict(market.settings)
            second = await processes.enter_async_context(running(settings, pick_free(), pick_free(), errors=log))
            market.load.urls = [market.coordinator.base_url, second.base_url]
            for old in (market.coordinator, second):
                await witnesses.create_batch(LINES)
                await posted_again(market)
                old.terminate()
                assert await old.exit_status() == 0
                await posted_again(market)
                newer = running(settings, old.port, old.metrics_port, program=NEXT_RELEASE, errors=log)
                await processes.enter_async_context(newer)
                await posted_again(market)
        assert await witnesses.violations() + witnesses.refused == []
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval(_ADDED) == [file.name for file in ADDED.values()]
        assert await connection.fetchval(_VALID)
    finally:
        await connection.close()
