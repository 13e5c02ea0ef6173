"""Pages of a long job book: offsets are exact, and few rows are read to reach them."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import pytest

from coordinatord.api.book.job_pages_sql import JobFilter, page_statement, read_page
from coordinatord.api.book.owner_sums_sql import read_summary
from coordinatord.base.errors import Retryable
from coordinatord.chain.indexer.tables_sql import drop_job_indexes
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from tests.integration.coordinatord.book.market_rows import (
    add_history,
    add_jobs,
    add_models,
    add_providers,
    begin_index,
    owner_of,
)

pytestmark = pytest.mark.anyio

HISTORY, OPEN, MODELS, PROVIDERS = 20_000, 300, 2, 3
LIMIT: Final = 20
_STATES: Final = {"Open": 0, "Claimed": 1, "Settled": 2, "Cancelled": 3}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with open_database(database_url, max_size=4) as opened:
        async with opened.connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, MODELS)
            await add_providers(connection, PROVIDERS)
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
