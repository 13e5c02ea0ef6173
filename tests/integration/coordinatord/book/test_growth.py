"""Old rows and rows made by strangers: how many of them do current queries read?"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from coordinatord.api.book import leases_sql, outlooks_sql
from coordinatord.api.book.candidates_sql import Demand, read_candidates
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.liveness_sql import SeenPoll, store_polls
from coordinatord.api.book.registries_sql import read_asks, read_floors, read_providers
from coordinatord.chain.indexer.expiry_sql import mark_all_expired_jobs
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.prepared import PreparedConnection
from tests.integration.coordinatord.book.market_rows import (
    add_history,
    add_jobs,
    add_models,
    add_providers,
    begin_index,
)

pytestmark = pytest.mark.anyio

PAST, OPEN, STRANGERS = 5_000, 400, 2_000
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
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, STRANGERS)
            await connection.execute("update providers set listed = provider_id <= $1", LISTED)
            await add_history(connection, PAST, models=1, providers=LISTED)
            await add_jobs(connection, OPEN, models=1, after=PAST)
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


async def test_poll_reads_no_job_but_those_that_it_leases(database: Database) -> None:
    """The plan is generic for all filter values, so the planner expects few matches."""

    async def lease(connection: Connection) -> None:
        _, held = await leases_sql.lease_jobs(connection, PollKey(1, 1), 4, JobFilter(), 60_000)
        assert len(held) == 4

    async def poll() -> None:
        await database.transact(lease)

    assert 0 < await rows_read(database, ["jobs"], poll) < 100


async def test_outlook_reads_few_jobs(database: Database) -> None:
    await database.pool.execute(
        "insert into leases select job_id, 1, 1, clock_timestamp() + interval '1 hour' from jobs where state = 0"
        " order by ordinal limit 50"
    )

    async def outlook() -> None:
        pollers = [PollKey(provider, 1) for provider in range(1, 65)]
        async with database.connection() as connection:
            for _ in range(8):  # PostgreSQL makes a generic plan after five executions
                await outlooks_sql.read_outlooks(cast(PreparedConnection, connection), pollers)

    assert 0 < await rows_read(database, ["jobs"], outlook) < 8 * 200


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


async def test_ended_waits_of_closed_jobs_are_dropped(database: Database) -> None:
    """Waits of jobs without payment stay while the job is open. The index reports when the job closes. A lease that has
    not ended stays, because a reorg may open its job again."""
    async with database.connection() as connection:
        open_jobs = [row["job_id"] for row in await connection.fetch("select job_id from jobs where state = 0 limit 3")]
        still_open, _, leased = open_jobs
        await leases_sql.hold_back_jobs(connection, open_jobs)
        await connection.execute("update jobs set expires_at = 5 where job_id <> $1", still_open)
        await mark_all_expired_jobs(connection, 6)
        await connection.execute("update leases set expires_at = clock_timestamp() where job_id <> $1", leased)
        await leases_sql.delete_expired_leases(connection)
        kept = {row["job_id"] for row in await connection.fetch("select job_id from leases")}
        assert kept == {still_open, leased}
