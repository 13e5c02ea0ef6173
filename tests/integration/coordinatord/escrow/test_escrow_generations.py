from collections.abc import AsyncIterator

import asyncpg
import pytest

from coordinatord.api.escrow import escrow_sql
from coordinatord.api.escrow.escrow_sql import GenerationRow
from coordinatord.storage.database.migration import migrate

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = (GenerationRow(bytes([n]) * 32, 1000 * n) for n in (1, 2, 3))
NOW = 10_000
EVERYTHING = 2**63 - 1

Connection = asyncpg.Connection


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(database_url)
    await migrate(connection)
    yield connection
    await connection.close()


async def announce(connection: Connection, *rows: GenerationRow) -> None:
    """Announce each key at a block of a hundred times its number."""
    await escrow_sql.record_keys(connection, rows)
    for row in rows:
        await escrow_sql.mark_announced(connection, row.public_key, 100 * row.public_key[0])


async def custody_began(connection: Connection) -> int:
    began: int = await connection.fetchval("select began from escrow_custody")
    assert await escrow_sql.has_lost_keys(connection) == (began >= 0)
    return began


async def test_without_a_loss_custody_has_no_beginning(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND)
    assert await escrow_sql.mark_lost(connection, [FIRST.public_key, SECOND.public_key], NOW) == []
    assert await custody_began(connection) == -1


async def test_custody_begins_at_the_first_key_after_the_latest_loss(
    connection: Connection,
) -> None:
    await announce(connection, FIRST, SECOND, THIRD)
    assert await escrow_sql.mark_lost(connection, [FIRST.public_key, THIRD.public_key], NOW) == [SECOND.public_key]
    assert await custody_began(connection) == 300, "the first is held, and what came between was lost"


async def test_custody_waits_for_a_key_after_the_loss(connection: Connection) -> None:
    await announce(connection, FIRST)
    await escrow_sql.record_keys(connection, [SECOND])
    await escrow_sql.mark_lost(connection, [SECOND.public_key], NOW)
    assert await custody_began(connection) == EVERYTHING
    await escrow_sql.mark_announced(connection, SECOND.public_key, 150)
    await escrow_sql.mark_announced(connection, SECOND.public_key, 999)  # by another instance, later
    assert await custody_began(connection) == 150


async def test_key_that_was_never_announced_is_no_loss(connection: Connection) -> None:
    await announce(connection, FIRST)
    await escrow_sql.record_keys(connection, [SECOND])
    assert await escrow_sql.mark_lost(connection, [FIRST.public_key], SECOND.announced_from - 1) == []
    assert await custody_began(connection) == -1


async def test_key_that_an_instance_holds_after_all_is_not_lost(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND)
    await escrow_sql.mark_lost(connection, [SECOND.public_key], NOW)
    await escrow_sql.record_keys(connection, [FIRST])
    assert await custody_began(connection) == -1


async def test_erased_key_is_lost_only_when_it_was_erased_too_early(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND, THIRD)
    await escrow_sql.mark_erased(connection, FIRST.public_key, too_early=False)
    assert await escrow_sql.mark_lost(connection, [SECOND.public_key, THIRD.public_key], NOW) == []
    assert await custody_began(connection) == -1
    await escrow_sql.mark_erased(connection, SECOND.public_key, too_early=True)
    assert await custody_began(connection) == 300


async def test_loss_is_forgotten_once_no_old_job_can_be_claimed(connection: Connection) -> None:
    await announce(connection, FIRST, SECOND)
    await escrow_sql.mark_lost(connection, [SECOND.public_key], NOW)
    await connection.execute("update escrow_generations set lost_at = lost_at - interval '48 hours'")
    await escrow_sql.delete_old_records(connection)
    assert await custody_began(connection) == 200
    await connection.execute("update escrow_generations set lost_at = lost_at - interval '2 hours'")
    assert await custody_began(connection) == -1
    await escrow_sql.delete_old_records(connection)
    assert [row["public_key"] for row in await connection.fetch("select public_key from escrow_generations")] == [
        SECOND.public_key
    ]
