"""Rows made by strangers: how many of them do current queries read?"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from coordinatord.api.book import leases_sql
from coordinatord.api.book.candidates_sql import Demand, read_candidates
from coordinatord.api.book.liveness_sql import SeenPoll, store_polls
from coordinatord.api.book.registries_sql import read_asks, read_floors, read_providers
from coordinatord.chain.indexer.expiry_sql import mark_all_expired_jobs
from coordinatord.storage.database.connections import Database, open_database
from tests.integration.coordinatord.book.market_rows import (
    add_jobs,
    add_models,
    add_providers,
    begin_index,
)

pytestmark = pytest.mark.anyio

STRANGERS = 2_000
LISTED = 3
READ = (
    "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint"
    " + (select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = any($1))"
    " from pg_stat_user_tables where relname = any($1)"
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A database with one connection, so that the connection's own statistics count every row read."""
    async with open_database(database_url, max_size=1) as opened:
        async with opened.connection() as connection:
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, STRANGERS)
            await connection.execute("update providers set listed = provider_id <= $1", LISTED)
            await add_jobs(connection, 2, models=1)
            await connection.execute("insert into asks select provider_id, 1, 3600, 5, 6 from providers")
            await connection.execute("vacuum analyze")
        yield opened


async def rows_read(database: Database, tables: list[str], work: Callable[[], Awaitable[object]]) -> int:
    """Return the number of rows and index entries of these tables that `work` read."""

    async def so_far() -> int:
        await database.pool.execute("select pg_stat_force_next_flush()")
        return int(await database.pool.fetchval(READ, tables))

    before = await so_far()
    await work()
    return await so_far() - before


async def test_quotes_and_lists_of_asks_look_at_listed_providers_alone(database: Database) -> None:
    line = database.prepared_connection()
    await store_polls(line, [SeenPoll(provider, 1, 1) for provider in range(1, STRANGERS + 1)], [0.0] * STRANGERS)
    await database.pool.execute("analyze liveness")

    async def quote() -> None:
        assert len(await read_candidates(database, Demand(1, 3600, 10, 10), 60_000, None)) == LISTED

    async def listed() -> None:
        assert len((await read_asks(database, None, 100, 0))[1]) == LISTED
        assert len((await read_floors(database, None, None, 100, 0))[1]) == 1

    assert 0 < await rows_read(database, ["asks", "providers", "liveness"], quote) < 100
    assert 0 < await rows_read(database, ["asks", "providers"], listed) < 100


async def test_page_of_providers_passes_over_none(database: Database) -> None:
    async def page() -> None:
        _, rows = await read_providers(database, 10, STRANGERS - 5)
        assert [row.provider_id for row in rows] == list(range(STRANGERS - 4, STRANGERS + 1))

    assert 0 < await rows_read(database, ["providers"], page) < 100


async def test_waits_of_expired_jobs_are_dropped_with_their_leases(database: Database) -> None:
    """Waits of jobs without payment stay while the job is open. The index reports when the job closes."""
    async with database.connection() as connection:
        open_jobs = [row["job_id"] for row in await connection.fetch("select job_id from jobs where state = 0 limit 2")]
        await leases_sql.hold_back_jobs(connection, open_jobs)
        await connection.execute("update jobs set expires_at = 5 where job_id = $1", open_jobs[0])
        await mark_all_expired_jobs(connection, 6)
        await leases_sql.delete_expired_leases(connection)
        assert [row["job_id"] for row in await connection.fetch("select job_id from leases")] == [open_jobs[1]]
