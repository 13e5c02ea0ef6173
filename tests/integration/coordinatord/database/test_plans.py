"""Plan all statements over a very long book. No plan reads a growing table completely or sorts more than a few pages.

Statements are found in the source, so new ones are included automatically. They are planned for unknown parameters, as
PostgreSQL eventually does for prepared statements. The statistics are scaled to make the histories look a hundred times
as long as the filled tables.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import asyncpg
import pytest

from tests.integration.coordinatord.database.tables import FILLED, SHORT, Statement, fill, statements

PAGE: Final = 1_000  # rows: the largest page of a list, or a few of them
TIMES: Final = 100
# Bounded by work under way, by a window, by the catalogue or by providers. These tables keep their filled size.
BOUNDED: Final = {
    "allowlist", "ask_times", "asks", "batch_work", "index_blocks", "leases", "liveness", "pending_offers",
    "provider_models", "reliability", "tab_frames", "tab_readers", "undo_journal", "webhooks",
}  # fmt: skip
GROWN: Final = sorted({*FILLED, "jobs"} - BOUNDED)
_REMOVAL: Final = "a part of statements by `remove_due`, which are planned where it is called"
_PAGES: Final = "put together for each list: test_long_books counts the rows that each of them passes over"

# Names in statements that are not constants of their module.
PARTS: Final = {
    "api.batches.lines_sql.read_ended_lines": [{"completed": "True"}, {"completed": "False"}],
    "api.batches.lines_sql.delete_finished_batches": [
        {"table": f"'{table}'", "column": f"'{column}'"}
        for table, column in (("batch_lines", "batch_id"), ("batch_work", "batch_id"), ("batches", "id"))
    ],
    "api.book.leases_sql._hold_back_where": [
        {"condition": "'j.job_id = any($3::bytea[])'"},
        {"condition": "f'j.owner = $3 and {AMOUNT_SQL} > $4::numeric'"},
    ],
    "api.book.registries_sql._read_page": [
        {"page": "_SELECT_ASKS", "order": "'page.provider_id, page.model_id, page.sla'"},
        {"page": "_SELECT_FLOORS", "order": "'page.model_id, page.sla'"},
        {"page": "_SELECT_PROVIDERS", "order": "'page.provider_id'"},
        {"page": "_SELECT_MODELS", "order": "'page.model_id'"},
        {"page": "_SELECT_ALLOWLIST", "order": "'page.key'"},
    ],
    "api.events.progress_sql": [{"condition": f"_OP_CONDITIONS[{n}]"} for n in range(4)],
    "api.escrow.escrow_sql.mark_erased": [{"column": "'lost_at'"}, {"column": "'erased_at'"}],
    "chain.relayer.queue_sql._select_relays": [
        {"condition": "'priority < 3 and kind = any($2::text[])'"},
        {"condition": "'priority = 3 and kind = any($2::text[])'"},
        {"condition": "'id = any($2::bigint[])'"},
    ],
    "chain.relayer.endings_sql.read_job_transactions": [
        {"condition": condition, "relayed": "'select 1'"} for condition in ("IS_MINED_START", "IS_MINED_EXIT")
    ],
    "chain.relayer.transactions_sql._read_stored_txs": [
        {"condition": "'t.block_number is null and not t.lost'"},
        {"condition": "\"t.lost and t.created_at > now() - interval '1 hour'\""},
    ],
    "chain.relayer.endings_sql.drop_endings": [{"age": "\"interval '86400 seconds'\""}],
    "api.sessions.sessions_sql.delete_expired_sessions": [{"table": "'nonces'"}, {"table": "'sessions'"}],
}
# Not planned separately.
UNPLANNED: Final = {
    "api.book.job_pages_sql.page_statement": _PAGES,
    "api.book.job_pages_sql._JobListSql.posted_before_sql": _PAGES,
    "api.book.job_pages_sql._JobListSql.offset_chunk_sql": _PAGES,
    "api.book.job_pages_sql._JobListSql._cumulative_counts_sql": _PAGES,
    "api.book.job_pages_sql._JobListSql._page_sql": _PAGES,
    "storage.database.removal_sql.remove_due": _REMOVAL,
    "chain.indexer.undo_sql.undo_above": "of a reorganisation, by keys that it finds in the journal",
    "chain.indexer.events_sql": "`APPEND_EXPIRY_EVENTS`, a part of the statement that marks what expired",
}
# Partial indexes with few rows at any table size: waiting, unpaid or overdue rows.
FEW: Final = {"batches_unreported", "relays_queue", "relays_dropped", "jobs_claimed", "jobs_designated", "jobs_due"}
# Plans that read or sort more, with the reason.
_SUMS: Final = "a row for each owner and kind, all of them once a minute"
ALLOWED: Final = {
    "storage.pins.objects_sql.read_bytes_by_kind": _SUMS,
    "storage.pins.objects_sql.drop_empty_sums": _SUMS,
    "storage.pins.objects_sql.mark_earners": _SUMS,
    "storage.pins.objects_sql.read_newcomer_sums": "a row for each newcomer and kind, in a twentieth of the time",
    "chain.relayer.transactions_sql.read_newest_blocks": "of a window of blocks, planned as a third of all",
}


@pytest.fixture(scope="module")
def planned() -> list[Statement]:
    return list(statements(PARTS))


@pytest.fixture
async def connection(database_url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    opened = await asyncpg.connect(database_url, statement_cache_size=0)
    await fill(opened)
    await opened.execute(
        "update pg_class set reltuples = $2::real * reltuples where relkind = 'r' and relname = any($1::text[])",
        GROWN,
        TIMES,
    )
    await opened.execute("set plan_cache_mode = force_generic_plan")
    await opened.execute("set jit = off")
    yield opened
    await opened.close()


def test_every_statement_is_planned_or_has_its_reason(planned: list[Statement]) -> None:
    unknown = {statement.function for statement in planned if statement.sql is None}
    assert unknown <= UNPLANNED.keys()
    functions = {statement.function for statement in planned}
    assert UNPLANNED.keys() | PARTS.keys() | ALLOWED.keys() <= functions, "names a function without statements"
    assert len(planned) > 250


async def test_no_plan_reads_or_sorts_more_than_a_page_of_what_grows(
    connection: "asyncpg.Connection[asyncpg.Record]", planned: list[Statement]
) -> None:
    rows = await connection.fetch(
        "select relname, reltuples from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
    )
    assert {row["relname"] for row in rows if row["reltuples"] < PAGE} == SHORT, "fill a new table here"
    keys = await index_keys(connection)
    found: dict[str, list[str]] = {}
    for statement in planned:
        if statement.function in UNPLANNED or statement.sql is None:
            continue
        plan = await plan_of(connection, statement.sql)
        found.setdefault(statement.function, []).extend(faults(plan, keys, under_limit=False))
    wrong = {function: said for function, said in found.items() if said}
    assert {function: said for function, said in wrong.items() if function not in ALLOWED} == {}
    assert wrong.keys() == ALLOWED.keys(), "a plan that was allowed for is good by now"


async def index_keys(connection: "asyncpg.Connection[asyncpg.Record]") -> dict[str, list[str]]:
    """The columns of each index."""
    rows = await connection.fetch(
        "select c.relname, array_agg(a.attname) as columns from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relkind = 'i' and c.relnamespace = 'public'::regnamespace group by 1"
    )
    return {row["relname"]: row["columns"] for row in rows}


async def plan_of(connection: "asyncpg.Connection[asyncpg.Record]", sql: str) -> dict[str, Any]:
    """A limit that is not known counts as a page: for a tenth of the table, as the planner has it, another plan is
    best."""
    types: list[str] = []
    for text in (sql, re.sub(r"\blimit \$\d+(::\w+)?", "limit 100", sql)):
        await connection.execute("deallocate all")
        declared = f"({', '.join(types)})" if types else ""
        await connection.execute(f"prepare it{declared} as {text}")
        types = await connection.fetchval("select parameter_types::text[] from pg_prepared_statements")
    nothing = f"({', '.join(['null'] * len(types))})" if types else ""
    told = json.loads(await connection.fetchval(f"explain (format json) execute it{nothing}"))
    plan: dict[str, Any] = told[0].get("Plan", {})
    return plan


def faults(node: dict[str, Any], keys: dict[str, list[str]], *, under_limit: bool) -> Iterator[str]:
    kind, table = node.get("Node Type", ""), node.get("Relation Name")
    index, filtered = node.get("Index Name", ""), node.get("Filter", "")
    if table in GROWN and kind == "Seq Scan":
        yield f"reads all of {table} for {filtered}"
    if "Index" in kind and table in GROWN and index not in FEW:
        if "Index Cond" not in node and node["Plan Rows"] > PAGE and (filtered or not under_limit):
            yield f"reads all of {index} for {filtered}"
        for key in keys[index]:
            if re.search(rf"\b{key} [<>]=? \(?clock_timestamp", filtered):
                yield f"passes over rows of {index} for {filtered}: a time that is not volatile is looked up"
    if kind == "Sort" and node["Plans"][0]["Plan Rows"] > PAGE:
        yield f"sorts {node['Plans'][0]['Plan Rows']} rows by {node['Sort Key']}"
    limited = kind == "Limit" or (under_limit and kind in ("LockRows", "Subquery Scan", "Result"))
    for part in node.get("Plans", []):
        yield from faults(part, keys, under_limit=limited)
