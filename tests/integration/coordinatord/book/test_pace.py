"""Estimate the block at which a job becomes reclaimable, from the pace of stored blocks."""

from collections.abc import AsyncIterator

import pytest

from coordinatord.api.book.block_pace import BlockPace
from coordinatord.storage.database.connections import Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.snapshot_sql import Snapshot

pytestmark = pytest.mark.anyio

AT_100 = Snapshot(100, b"h" * 32, 1_000)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=2) as opened:
        async with opened.connection() as connection:
            await migrate(connection)
        yield opened


async def keep(database: Database, blocks: dict[int, int]) -> None:
    async with database.connection() as connection:
        await connection.executemany(
            "insert into index_blocks (number, hash, parent_hash, time) values ($1, $2, $2, $3)",
            [(number, number.to_bytes(32, "big"), time) for number, time in blocks.items()],
        )


async def test_first_block_after_a_time_is_estimated_in_the_future(
    database: Database,
) -> None:
    pace = BlockPace(database)
    assert await pace.estimate_block_after(AT_100, 1_035) is None  # no blocks, no pace
    await keep(database, {90: 880, 100: 1_000})
    assert await BlockPace(database).estimate_block_after(AT_100, 1_035) == 103
    assert await BlockPace(database).estimate_block_after(AT_100, 1_036) == 104
    assert await BlockPace(database).estimate_block_after(AT_100, 500) == 101


async def test_pace_is_read_again_once_it_is_old(database: Database) -> None:
    now = 0.0
    pace = BlockPace(database, lambda: now)
    await keep(database, {90: 880, 100: 1_000})
    assert await pace.estimate_block_after(AT_100, 1_035) == 103
    await keep(database, {80: 860})
    assert await pace.estimate_block_after(AT_100, 1_035) == 103
    now = 11.0
    assert await pace.estimate_block_after(AT_100, 1_035) == 106


async def test_blocks_of_one_second_give_no_estimate(database: Database) -> None:
    await keep(database, {99: 1_000, 100: 1_000})
    assert await BlockPace(database).estimate_block_after(AT_100, 1_035) is None
