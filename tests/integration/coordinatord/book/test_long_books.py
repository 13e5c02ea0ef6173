"""Reads of a long book: exact offsets, few rows read, and the pace of its blocks."""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

import asyncpg
import pytest

from coordinatord.api.book import leases_sql, outlooks_sql
from coordinatord.api.book.block_pace import BlockPace
from coordinatord.api.book.candidates_sql import Demand, read_candidates
from coordinatord.api.book.job_pages_sql import JobFilter, page_statement, read_page
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.liveness_sql import SeenPoll, store_polls
from coordinatord.api.book.owner_sums_sql import read_summary
from coordinatord.api.book.registries_sql import read_asks, read_floors, read_providers
from coordinatord.base.errors import Retryable
from coordinatord.chain.indexer.expiry_sql import mark_all_expired_jobs
from coordinatord.chain.indexer.tables_sql import drop_job_indexes
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.integration.coordinatord.book.market_rows import (
    add_history,
    add_jobs,
    market,
    owner_of,
)

HISTORY, OPEN, MODELS, PROVIDERS = 20_000, 300, 2, 3
LIMIT: Final = 20
_STATES: Final = {"Open": 0, "Claimed": 1, "Settled": 2, "Cancelled": 3}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Market with 20,000 ended and 300 open jobs."""
    async with market(database_url, models=MODELS, providers=PROVIDERS) as opened:
        async with opened.connection() as connection:
            await add_history(connection, HISTORY, models=MODELS, providers=PROVIDERS)
            await add_jobs(connection, OPEN, models=MODELS, after=HISTORY)
            await connection.execute("vacuum analyze jobs, job_counts")
        yield opened


def members(rows: list[asyncpg.Record], wanted: JobFilter) -> list[bytes]:
    """Return the ids of the whole list by reading every job."""
    return [
        row["job_id"]
        for row in rows
        if (wanted.state is None or row["state"] == _STATES[wanted.state])
        and (wanted.model_id is None or row["model_id"] == wanted.model_id)
        and (wanted.owner is None or row["owner"] == wanted.owner)
        and (wanted.provider_id is None or row["provider_id"] == wanted.provider_id)
        and (wanted.posted_before is None or row["posted_block"] <= wanted.posted_before)
        and (wanted.min_rate_in is None or row["rate_in"] >= wanted.min_rate_in)
        and (wanted.min_rate_out is None or row["rate_out"] >= wanted.min_rate_out)
    ]


COUNTED: Final[list[dict[str, Any]]] = [{}, {"model_id": 1}, {"owner": owner_of(0)}, {"provider_id": 2}]
WALKED: Final[list[dict[str, Any]]] = [
    {"owner": owner_of(0), "model_id": 2},
    {"model_id": 2, "min_rate_in": 1_000_500},
    {"min_rate_in": 1_000_500, "min_rate_out": 2_000_000},
]


@pytest.mark.parametrize("spread", [1, 60])
async def test_page_at_any_offset_is_that_stretch_of_the_list(database: Database, spread: int) -> None:
    """With `spread`, ordinals are those of a long book with many chunks on both levels."""
    if spread > 1:
        for ordinal in (f"ordinal * {spread} + 10000000", "ordinal - 10000000"):  # never one still in use
            await database.pool.execute(f"update jobs set ordinal = {ordinal}")  # noqa: S608 - constants
    book = await database.pool.fetch("select * from jobs order by posted_block, posted_log")
    for of, state, before in itertools.product(COUNTED + WALKED, (None, "Settled", "Cancelled"), (None, 1666)):
        whole = members(book, JobFilter(**of, state=state, posted_before=before))
        for newest, part in itertools.product((False, True), (0, 0.3, 0.7, 1)):
            wanted = JobFilter(**of, state=state, posted_before=before, newest_first=newest)
            expected, offset = whole[::-1] if newest else whole, max(0, int(part * len(whole)) - 5)
            _, rows = await read_page(database, wanted, LIMIT, offset)
            assert [row.job_id for row in rows] == expected[offset : offset + LIMIT], (wanted, offset)


async def test_page_passes_over_little_however_deep(database: Database) -> None:
    async with database.connection() as connection:
        for mode, of in itertools.product(("force_custom_plan", "force_generic_plan"), COUNTED):
            await connection.execute(f"set plan_cache_mode = {mode}")
            for state, newest in itertools.product((None, "Open", "Settled", "Cancelled"), (False, True)):
                wanted = JobFilter(**of, state=state, newest_first=newest)
                assert await passed_over(connection, wanted, 0) <= 10 * LIMIT, (wanted, mode)
                # An offset inside a chunk. Each state has a row per chunk in job_counts.
                assert await passed_over(connection, wanted, 5_000) <= 4096 + 10 * LIMIT, (wanted, mode)


async def passed_over(connection: Connection, wanted: JobFilter, offset: int) -> int:
    """Return the rows that the page's statement reads from growing tables."""
    statement = page_statement(wanted, LIMIT, offset)
    told = await connection.fetchval(f"explain (analyze, format json) {statement.sql}", *statement.values)
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in nodes_of(json.loads(told)[0]["Plan"])
        if node.get("Relation Name") in ("jobs", "job_counts")
    )


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *itertools.chain.from_iterable(nodes_of(part) for part in plan.get("Plans", []))]


async def test_summary_is_the_sum_over_the_owners_jobs(database: Database) -> None:
    async with database.connection() as connection:
        counted = await connection.fetch(
            "select model_id, count(*), count(*) filter (where state = 2), sum(cap)::text from jobs"
            " where owner = $1 group by grouping sets ((), (model_id)) order by 1 nulls first",
            owner_of(0),
        )
    _, sums = await read_summary(database, owner_of(0))
    assert [tuple(row)[:4] for row in sums] == [tuple(row) for row in counted]
    assert len(sums) == 1 + MODELS


async def test_counts_wait_for_the_first_backfill(database: Database) -> None:
    async with database.connection() as connection:
        await drop_job_indexes(connection)
    _, rows = await read_page(database, JobFilter(), LIMIT, 0)
    assert len(rows) == LIMIT
    for answer in (lambda: read_page(database, JobFilter(), LIMIT, 5_000), lambda: read_summary(database, owner_of(0))):
        with pytest.raises(Retryable, match="counted its jobs"):
            await answer()


ENDED_JOBS, OPEN_JOBS, ALL_PROVIDERS = 5_000, 400, 2_000
LISTED_PROVIDERS = 3
READ = (
    "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint"
    " + (select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname = any($1))"
    " from pg_stat_user_tables where relname = any($1)"
)


@pytest.fixture
async def database_with_unlisted_providers(database_url: str) -> AsyncIterator[Database]:
    """Market with 2,000 providers, of which three are listed, and with 5,000 ended and 400 open jobs.

    The pool has one connection, because the statistics of rows read are those of one connection.
    """
    async with market(database_url, max_size=1, providers=ALL_PROVIDERS) as opened:
        async with opened.connection() as connection:
            await connection.execute("update providers set listed = provider_id <= $1", LISTED_PROVIDERS)
            await add_history(connection, ENDED_JOBS, models=1, providers=LISTED_PROVIDERS)
            await add_jobs(connection, OPEN_JOBS, models=1, after=ENDED_JOBS)
            await connection.execute(
                "insert into asks (provider_id, model_id, sla, rate_in, rate_out)"
                " select provider_id, 1, 3600, 5, 6 from providers"
            )
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


async def test_poll_reads_no_job_but_those_that_it_leases(database_with_unlisted_providers: Database) -> None:
    """The plan is generic for all filter values, so the planner expects few matches."""

    async def lease(connection: Connection) -> None:
        _, held = await leases_sql.lease_jobs(connection, PollKey(1, 1), 4, JobFilter(), 60_000)
        assert len(held) == 4

    async def poll() -> None:
        await database_with_unlisted_providers.transact(lease)

    assert 0 < await rows_read(database_with_unlisted_providers, ["jobs"], poll) < 100


async def test_outlook_reads_few_jobs(database_with_unlisted_providers: Database) -> None:
    await database_with_unlisted_providers.pool.execute(
        "insert into leases (job_id, provider_id, model_id, expires_at)"
        " select job_id, 1, 1, clock_timestamp() + interval '1 hour' from jobs where state = 0"
        " order by ordinal limit 50"
    )

    async def outlook() -> None:
        pollers = [PollKey(provider, 1) for provider in range(1, 65)]
        async with database_with_unlisted_providers.connection() as connection:
            for _ in range(8):  # PostgreSQL makes a generic plan after five executions
                await outlooks_sql.read_outlooks(cast(PreparedConnection, connection), pollers)

    assert 0 < await rows_read(database_with_unlisted_providers, ["jobs"], outlook) < 8 * 200


async def test_quotes_and_lists_of_asks_look_at_listed_providers_alone(
    database_with_unlisted_providers: Database,
) -> None:
    line = database_with_unlisted_providers.prepared_connection()
    await store_polls(
        line, [SeenPoll(provider, 1, 1) for provider in range(1, ALL_PROVIDERS + 1)], [0.0] * ALL_PROVIDERS
    )
    await database_with_unlisted_providers.pool.execute("analyze liveness")

    async def quote() -> None:
        assert (
            len(await read_candidates(database_with_unlisted_providers, Demand(1, 3600, 10, 10), 60_000, None))
            == LISTED_PROVIDERS
        )

    async def listed() -> None:
        assert len((await read_asks(database_with_unlisted_providers, None, 100, 0))[1]) == LISTED_PROVIDERS
        assert len((await read_floors(database_with_unlisted_providers, None, None, 100, 0))[1]) == 1

    assert 0 < await rows_read(database_with_unlisted_providers, ["asks", "providers", "liveness"], quote) < 100
    assert 0 < await rows_read(database_with_unlisted_providers, ["asks", "providers"], listed) < 100


async def test_page_of_providers_passes_over_none(database_with_unlisted_providers: Database) -> None:
    async def page() -> None:
        _, rows = await read_providers(database_with_unlisted_providers, 10, ALL_PROVIDERS - 5)
        assert [row.provider_id for row in rows] == list(range(ALL_PROVIDERS - 4, ALL_PROVIDERS + 1))

    assert 0 < await rows_read(database_with_unlisted_providers, ["providers"], page) < 100


async def test_ended_waits_of_closed_jobs_are_dropped(database_with_unlisted_providers: Database) -> None:
    """Waits of jobs without payment stay while the job is open. The index reports when the job closes. A lease that has
    not ended stays, because a reorg may open its job again."""
    async with database_with_unlisted_providers.connection() as connection:
        open_jobs = [row["job_id"] for row in await connection.fetch("select job_id from jobs where state = 0 limit 3")]
        still_open, _, leased = open_jobs
        await leases_sql.hold_back_jobs(connection, open_jobs)
        await connection.execute("update jobs set expires_at = 5 where job_id <> $1", still_open)
        await mark_all_expired_jobs(connection, 6)
        await connection.execute("update leases set expires_at = clock_timestamp() where job_id <> $1", leased)
        await leases_sql.delete_expired_leases(connection)
        kept = {row["job_id"] for row in await connection.fetch("select job_id from leases")}
        assert kept == {still_open, leased}


AT_100 = Snapshot(100, b"h" * 32, 1_000)


@pytest.fixture
async def database_without_jobs(database_url: str) -> AsyncIterator[Database]:
    """Market with one model, without providers and jobs."""
    async with market(database_url) as opened:
        yield opened


async def keep(database: Database, blocks: dict[int, int]) -> None:
    async with database.connection() as connection:
        await connection.executemany(
            "insert into index_blocks (number, hash, parent_hash, time) values ($1, $2, $2, $3)",
            [(number, number.to_bytes(32, "big"), time) for number, time in blocks.items()],
        )


async def test_first_block_after_a_time_is_estimated_in_the_future(database_without_jobs: Database) -> None:
    pace = BlockPace(database_without_jobs)
    assert await pace.estimate_block_after(AT_100, 1_035) is None  # no blocks, no pace
    await keep(database_without_jobs, {90: 880, 100: 1_000})
    assert await BlockPace(database_without_jobs).estimate_block_after(AT_100, 1_035) == 103
    assert await BlockPace(database_without_jobs).estimate_block_after(AT_100, 1_036) == 104
    assert await BlockPace(database_without_jobs).estimate_block_after(AT_100, 500) == 101


async def test_pace_is_read_again_once_it_is_old(database_without_jobs: Database) -> None:
    now = 0.0
    pace = BlockPace(database_without_jobs, lambda: now)
    await keep(database_without_jobs, {90: 880, 100: 1_000})
    assert await pace.estimate_block_after(AT_100, 1_035) == 103
    await keep(database_without_jobs, {80: 860})
    assert await pace.estimate_block_after(AT_100, 1_035) == 103
    now = 11.0
    assert await pace.estimate_block_after(AT_100, 1_035) == 106


async def test_blocks_of_one_second_give_no_estimate(database_without_jobs: Database) -> None:
    await keep(database_without_jobs, {99: 1_000, 100: 1_000})
    assert await BlockPace(database_without_jobs).estimate_block_after(AT_100, 1_035) is None
