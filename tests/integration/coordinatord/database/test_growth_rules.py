"""Each retention rule removes due rows and keeps all younger rows."""

from typing import Final

import attrs
import pytest

from coordinatord.api.escrow import escrow_sql
from coordinatord.chain.indexer import undo_sql
from coordinatord.chain.indexer.undo_sql import IndexedBlock
from coordinatord.run import janitor
from coordinatord.storage.database import removal_sql
from tests.integration.coordinatord.scene.stage import Stage

DAY: Final = 86_400


@attrs.frozen
class Rule:
    """`insert` adds row number $1, which is $2 seconds old. `kept` is its retention in seconds."""

    table: str
    insert: str
    kept: int
    number: str
    margin: int = 60
    others: str = "false"  # rows that exist from the start


_AGO: Final = "clock_timestamp() - $2::bigint * interval '1 second'"
_TX: Final = (
    "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, purpose, created_at,"
    " mined_hash, block_number, block_hash) overriding system value"
    " values (1, 'a', $1::bigint, '', '', 1, 'relay', @AGO, 'h', 1, 'b')"
)
_BATCH: Final = (
    "insert into batches (id, owner, endpoint, input_file_id, completion_window, metadata, request_hash, expires_at,"
    " completed_at, completed) select 'batch_' || $1::bigint, '', '/v1/responses', '', '24h', '{}', '',"
    " clock_timestamp(), @AGO, 1"
)


def spelled(insert: str) -> str:
    for name, text in (("@WITH_TX", "with tx as (@TX returning id, nonce)"), ("@TX", _TX), ("@BATCH", _BATCH)):
        insert = insert.replace(name, text)
    return insert.replace("@AGO", _AGO)


RULES: Final = [
    Rule("nonces", "insert into nonces values ($1::bigint::text, '', 'c', @AGO, @AGO)", 0, "nonce::bigint"),
    Rule(
        "sessions",
        "insert into sessions (token_hash, address, expires_at) values (int8send($1), '', @AGO)",
        0,
        "('x' || encode(token_hash, 'hex'))::bit(64)::bigint",
    ),
    Rule("liveness", "insert into liveness values ($1, 1, 1, @AGO)", DAY, "provider_id"),
    Rule(
        "tab_frames",
        "insert into tab_frames (job_id, to_owner, frames, bytes, events, sent_at)"
        " values (int8send($1), true, 1, $1, '', @AGO)",
        60,
        "bytes",
        margin=30,
    ),
    Rule("leases", "insert into leases values (int8send($1), $1, 1, @AGO)", 0, "provider_id"),
    Rule(
        "events",
        "insert into events (kind, block_number, block_time, happened) values (7, 0, $1::bigint, @AGO)",
        DAY,
        "block_time",
        others="(block_time = 0 or block_time > 3)",
    ),
    Rule(
        "job_ends",
        "insert into job_ends (job_id, tx_hash, kept_at) values (int8send($1), '', @AGO)",
        365 * DAY,
        "('x' || encode(job_id, 'hex'))::bit(64)::bigint",
    ),
    Rule(
        "relays",
        "insert into relays (kind, subject, dedupe, target, calldata, priority, state, call_index, ended_at)"
        " values ('claim', '', int8send($1), '', '', 0, 'refused', $1, @AGO)",
        7 * DAY,
        "call_index",
    ),
    Rule("relay_txs", "@TX", 7 * DAY, "nonce"),
    Rule(
        "relay_tx_versions",
        "@WITH_TX insert into relay_tx_versions (hash, tx_id, raw, max_fee, max_tip)"
        " select int8send(nonce), id, '', nonce, 0 from tx",
        7 * DAY,
        "max_fee::bigint",
    ),
    Rule(
        "gas_bookings",
        "@WITH_TX insert into gas_bookings select id, '', 'post', false, nonce, 1 from tx",
        7 * DAY,
        "hour",
    ),
    Rule(
        "relay_traces",
        "insert into relay_traces values ($1, 'post', '', repeat('0', 55), @AGO)",
        2 * DAY,
        "relay_id",
    ),
    Rule("batches", "@BATCH", 30 * DAY, "substr(id, 7)::bigint"),
    Rule("batches", _BATCH.removesuffix("1") + "0", 3 * DAY, "substr(id, 7)::bigint"),  # without a result
    Rule(
        "batch_lines",
        "with b as (@BATCH returning id) insert into batch_lines (batch_id, line) select id, $1 from b",
        30 * DAY,
        "line",
    ),
    Rule(
        "objects",
        "insert into objects (key, subject, cid, bytes, sha256, holders, expires_at)"
        " values ('containers/' || $1::bigint, int8send($1), 'bafk', $1, '', 0, @AGO)",
        0,
        "bytes",
    ),
    Rule(
        "files",
        "insert into files (id, owner, purpose, filename, cid, bytes, expires_at)"
        " values ('file-' || $1::bigint, '', 'input', '', 'bafk', $1, @AGO)",
        0,
        "bytes",
    ),
]


# Tables outside RULES, with what bounds each.
OTHER_TABLES: Final = {
    "jobs": "the market's history",
    "job_counts": "a sum over jobs",
    "owner_sums": "a sum over jobs",
    "reliability": "rewritten by the janitor; one row per provider and model",
    "models": "the registry's",
    "slas": "the registry's",
    "fees": "one row",
    "allowlist": "the registry's",
    "providers": "the registry's",
    "provider_models": "the registry's",
    "asks": "one row per provider, model and window",
    "ask_times": "one row per provider",
    "index_position": "one row",
    "server_epoch": "one row",
    "sessions_taken_back": "one row",
    "webhook_position": "one row",
    "migrations": "one row per migration",
    "index_blocks": "removed when it can no longer be undone",
    "undo_journal": "removed with its block",
    "escrow_generations": "removed 49 hours after its key was erased",
    "webhooks": "ten per owner",
    "relay_formers": "removed with its relay",
    "batch_work": "removed at the end of its batch",
    "pinned_keys": "removed with its object or file",
    "stored": "removed when the owner keeps nothing",
    "webhook_messages": "removed when answered or given up",
    "tab_readers": "removed at the end of its job",
    "pending_offers": "removed at the end of its post",
}


async def test_every_table_has_a_rule_or_a_reason(stage: Stage) -> None:
    tables = await stage.fetchval(
        "select array_agg(relname) from pg_class where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace"
    )
    assert set(tables) == {rule.table for rule in RULES} | OTHER_TABLES.keys()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.table)
async def test_a_sweep_removes_what_is_due_and_nothing_younger(stage: Stage, rule: Rule) -> None:
    """The third row exists because an account's newest transaction is kept at any age."""
    await stage.execute(spelled(rule.insert), 1, rule.kept + rule.margin)
    await stage.execute(spelled(rule.insert), 2, rule.kept - rule.margin)
    await stage.execute(spelled(rule.insert), 3, rule.kept - rule.margin)
    query = f"select array_agg({rule.number} order by {rule.number}) from {rule.table} where not {rule.others}"  # noqa: S608 - ours
    assert await stage.fetchval(query) == [1, 2, 3]
    await stage.sweep()
    assert await stage.fetchval(query) == [2, 3]


async def test_undecided_relays_and_transactions_are_kept(stage: Stage) -> None:
    await stage.execute(spelled("@TX").replace("'h', 1, 'b'", "null, null, null"), 1, 99 * DAY)
    await stage.execute(spelled("@TX"), 2, 99 * DAY)
    await stage.execute(
        "insert into relays (kind, subject, dedupe, target, calldata, priority, state, tx_id)"
        " select 'claim', '', 'd', '', '', 0, 'signed', id from relay_txs where nonce = 1"
    )
    await stage.execute("update relays set created_at = clock_timestamp() - interval '99 days'")
    await stage.sweep()
    assert await stage.fetchval("select array_agg(nonce order by nonce) from relay_txs") == [1, 2]
    assert await stage.fetchval("select count(*) from relays") == 1


PILES: Final = ("nonces", "sessions", "job_ends", "relays", "relay_txs", "batch_lines")


@pytest.mark.parametrize("table", PILES)
async def test_sweep_removes_a_backlog_in_short_statements(
    stage: Stage, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal_sql, "ROWS_PER_DELETE", 7)
    monkeypatch.setattr(janitor, "_MAX_DELETED_ROWS", 7)
    rule = next(rule for rule in RULES if rule.table == table)
    async with stage.ground.database.connection() as connection:
        await connection.executemany(spelled(rule.insert), [(n, rule.kept + rule.margin) for n in range(1, 25)])
    await stage.execute(
        "create function few() returns trigger language plpgsql as $$ begin"  # noqa: S608 - ours
        " if (select count(*) from gone) > 7 then raise exception 'a long statement'; end if; return null; end $$;"
        f" create trigger few after delete on {table} referencing old table as gone"
        " for each statement execute function few()"
    )
    await stage.sweep()
    newest = 1 if table == "relay_txs" else 0  # of an account, which is kept
    assert await stage.fetchval(f"select count(*) from {table}") == newest  # noqa: S608 - ours


async def test_sums_of_nothing_go_and_others_stay(stage: Stage) -> None:
    await stage.execute("insert into stored values ('a', 'inputs', 0, 0), ('b', 'inputs', 1, 0), ('c', 'inputs', 0, 1)")
    await stage.sweep()
    assert await stage.fetchval("select array_agg(owner order by owner) from stored") == [b"b", b"c"]


async def test_erased_generations_of_the_escrow_go_after_49_hours(stage: Stage) -> None:
    for key, hours in ((b"old", 50), (b"new", 48)):
        await stage.execute(
            "insert into escrow_generations (public_key, announced_from, erased_at)"
            " values ($1, 1, clock_timestamp() - $2 * interval '1 hour')",
            key,
            hours,
        )
    async with stage.ground.database.connection() as connection:
        await escrow_sql.delete_old_records(connection)
    assert await stage.fetchval("select array_agg(public_key) from escrow_generations") == [b"new"]


async def test_the_journal_keeps_its_window_and_no_more(stage: Stage) -> None:
    async with stage.ground.database.connection() as connection, connection.transaction():
        await undo_sql.restart_index_blocks(connection, IndexedBlock(100, b"h", b"p", 1))
        for number in range(101, 121):
            await connection.execute(
                "insert into undo_journal (block_number, table_name, inserted, saved) values ($1, 'fees', true, '{}')",
                number,
            )
            await undo_sql.append_index_blocks(connection, [IndexedBlock(number, b"h", b"p", number)], 8)
        for table, column in (("index_blocks", "number"), ("undo_journal", "block_number")):
            found = await connection.fetchrow(f"select min({column}), max({column}) from {table}")  # noqa: S608 - ours
            assert found is not None
            assert tuple(found) == ((112, 120) if table == "index_blocks" else (113, 120))
