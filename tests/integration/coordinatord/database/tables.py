"""Statements of the code, and tables with many rows, for tests of query plans."""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import asyncpg
import attrs

from coordinatord.storage.database.removal_sql import remove_due
from tests.integration.coordinatord.book.market_rows import add_history, add_jobs, add_models, add_providers

JOBS, OPEN, MODELS, PROVIDERS = 30_000, 2_000, 16, 200
_AGO: Final = "clock_timestamp() - n * interval '30 seconds'"
_ROWS: Final = 20_000
_DIGEST: Final = "sha256(n::text::bytea)"
_CALLER: Final = "substr(sha256((n / 2)::text::bytea), 1, 20)"  # each caller has two rows
_ADDRESS: Final = "substr(sha256((n % 500)::text::bytea), 1, 20)"

# Rows for the index's tables that `market_rows` leaves empty, and for the daemon's tables.
FILLED: Final = {
    "events": "(kind, block_number, block_time, happened, job_id, owner, model_id, provider_id, designated, state,"
    f" ended_because, takes_back) select case when n % 5000 = 0 then 7 else 1 end, {_ROWS} - n, 1, {_AGO}, {_DIGEST},"
    f" {_ADDRESS}, n % 16, 1, 0, 0, 0, case when n % 1000 = 1 then n end",
    "index_blocks": f"select n, {_DIGEST}, {_DIGEST}, n * 2",
    "undo_journal": "(block_number, table_name, inserted, saved) select n / 20, 'jobs', false,"
    " jsonb_build_object('job_id', n)",
    "asks": "select n % 1000, n / 1000, 3600 * (1 + n % 3), 1000, 1000",
    "ask_times": "select n, n",
    "provider_models": "select n % 1000, n / 1000",
    "allowlist": f"select {_DIGEST}, 1, 'entry'",
    "reliability": "select n % 1000, n / 1000, n, 0, 0, 1, 1",
    "relay_txs": "(chain_id, account, nonce, target, calldata, gas, purpose, created_at, mined_hash,"
    " block_number, block_hash, lost) select 1, case when n % 2 = 0 then '\\x01'::bytea else '\\x02' end, n, '', '', 1,"
    f" 'relay', {_AGO}, case when n > 10 then {_DIGEST} end, case when n > 10 then n end, {_DIGEST}, n % 3000 = 0",
    "relay_tx_versions": f"select {_DIGEST}, n, '', 1, 1, false, {_AGO}",
    "relays": "(kind, subject, dedupe, target, calldata, priority, state, tx_id, call_index, created_at, queued_at,"
    " ended_at, signer, gas_estimate, newcomer, amount, mined_block)"
    f" select (array['post', 'claim', 'settle'])[1 + n % 3], {_DIGEST}, {_DIGEST}, '', '', n % 4, case"
    " when n <= 10 then 'signed' when n <= 20 then 'queued' when n % 50 = 0 then 'refused' when n % 50 = 1"
    " then 'dropped' else 'mined' end::relay_state, case when n > 20 or n <= 10 then n end, 0,"
    f" {_AGO}, {_AGO}, case when n > 20 then {_AGO} end, {_ADDRESS}, 1000, n % 100 = 0, 1000,"
    " case when n > 20 then n end",
    "relay_formers": "select n, n, 0",
    "relay_traces": f"select n, 'post', {_DIGEST}, repeat('0', 55), {_AGO}",
    "job_ends": f"select {_DIGEST}, {_DIGEST}, {_AGO}",
    "gas_bookings": f"select n, {_ADDRESS}, 'post', n % 100 = 0, 490000 + n / 500, 1",
    "nonces": f"select n::text, {_CALLER}, 'caller' || n % 700, {_AGO}, clock_timestamp() + n * interval '1 second'",
    "sessions": f"select {_DIGEST}, {_CALLER}, n % 900, clock_timestamp() + n * interval '1 second'",
    "leases": f"select {_DIGEST}, n % 900, n % 16, clock_timestamp() + n * interval '1 second', 0",
    "liveness": f"select n % 1000, n / 1000, 1, {_AGO}",
    "pending_offers": f"select {_DIGEST}, n, {_ADDRESS}, '', n % 16, 3600, 1, 1, 1, 1, 0, 1, '', '', 1, 1, '', '{{}}',"
    f" case when n % 2 = 0 then n end, {_AGO}",
    "objects": f"select 'containers/' || n, {_DIGEST}, 'cid' || n, 1, '', n % 10 > 0, {_AGO},"
    f" clock_timestamp() + n * interval '1 minute', 0, null, {_ADDRESS}, n % 2000 <> 1",
    "pinned_keys": "select 'containers/' || n, 'cid' || n",
    "stored": f"select {_DIGEST}, 'inputs', 1, 1",
    "files": f"select 'file-' || n, {_ADDRESS}, 'input', '', 'cid' || n, '', 1, 1, n % 10 > 0, {_AGO},"
    f" clock_timestamp() + n * interval '1 minute', case when n % 1000 = 0 then 'u' || n end,"
    f" case when n % 5 = 0 then {_DIGEST} end, null, null",
    "batches": "(id, owner, endpoint, input_file_id, completion_window, metadata, idempotency_key, request_hash,"
    f" created_at, expires_at, completed_at, completed) select 'batch_' || n, {_ADDRESS}, '/v1/responses',"
    f" 'file-' || n, '24h', '{{}}', n::text, '', {_AGO}, {_AGO}, case when n > 50 then {_AGO} end, n % 7",
    "batch_work": "select 'batch_' || n, clock_timestamp() + n * interval '1 second', 0, 0, 0, false",
    "batch_lines": f"select 'batch_' || 1 + n / 400, n % 400, {_DIGEST}, case when n % 3 > 0 then n end,"
    " case when n % 3 = 0 then 'refused' end, null, false, null",
    "tab_frames": f"(job_id, to_owner, frames, bytes, events) select {_DIGEST}, n % 2 = 0, 1, 1, ''",
    "tab_readers": f"select {_DIGEST}, n % 2 = 0, n",
    "webhooks": f"(id, owner, url, wanted, secret, created_at, due_at) select 'wh_' || n, {_ADDRESS}, '',"
    f" array['job.settled'], '', {_AGO}, case when n % 40 = 0 then {_AGO} end",
    "webhook_messages": "(webhook_id, message_id, type, body, due_at)"
    f" select 'wh_' || 1 + n % 900, n::text, 'job.settled', '', {_AGO}",
}
# Tables with facts of the deployment or catalogue, or total sums. They never grow.
SHORT: Final = {
    "index_position", "server_epoch", "fees", "slas", "models", "migrations", "escrow_generations",
    "sessions_taken_back", "webhook_position", "providers",
}  # fmt: skip


async def fill(connection: "asyncpg.Connection[asyncpg.Record]") -> None:
    await connection.execute("insert into index_position (block_number, block_hash, block_time) values (1, '\\x01', 1)")
    await add_models(connection, MODELS)
    await add_providers(connection, PROVIDERS)
    await add_history(connection, JOBS, models=MODELS, providers=PROVIDERS)
    await add_jobs(connection, OPEN, models=MODELS, after=JOBS)
    await connection.execute("set session_replication_role = replica")  # skip foreign keys: rows are consistent
    for table, rows in FILLED.items():
        await connection.execute(f"insert into {table} {rows} from generate_series(1, {_ROWS}) as n")
    await connection.execute("set session_replication_role = origin")
    await connection.execute("analyze")


_ROOT: Final = Path(__file__).parents[4]
_BEGINS: Final = re.compile(
    r"\s*(select\s|with\s+(recursive\s+)?\w+(\s*\([\w, ]+\))? as |update \w+ (?!.*`)|insert into |delete from )"
)
_OPENS: Final = re.compile(r"\s*(select|with|update|insert into|delete from)\s")
_READS: Final = re.compile(r"\b(select|from|update)\b")
Parts = Mapping[str, Sequence[Mapping[str, str]]]


@attrs.frozen
class Statement:
    """SQL statement in the source.

    `function` is the module and function, as in `book.sql.read_page`. `sql` is None if the statement contains a name
    whose value the test does not know.
    """

    function: str
    sql: str | None


def statements(parts: Parts) -> Iterator[Statement]:
    """Return all statements. `parts` maps a function to expressions for names in its statements, one per planned
    variant."""
    for path in sorted((_ROOT / "coordinatord").rglob("*.py")):
        name = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        found = [pair for pair in _texts(ast.parse(path.read_text(encoding="utf-8")), "") if _may_be_sql(pair[0])]
        scope = vars(importlib.import_module(name)) if found else {}
        for expression, function in found:
            full_name = f"{name.removeprefix('coordinatord.')}.{function}".rstrip(".")
            for given in parts.get(full_name, [{}]):
                yield from _filled(expression, scope, full_name, given)


def _filled(
    expression: ast.expr, scope: dict[str, Any], function: str, given: Mapping[str, str]
) -> Iterator[Statement]:
    known = dict(scope)
    for name, spelled in given.items():
        known[name] = eval(spelled, known)  # noqa: S307 - the test's own
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), function, "eval")
    try:
        text = eval(code, known)  # noqa: S307 - the daemon's source
    except (NameError, KeyError):
        yield Statement(function, None)
        return
    if isinstance(text, str) and _BEGINS.match(text):
        yield Statement(function, text)


def _texts(node: ast.AST, function: str) -> Iterator[tuple[ast.expr, str]]:
    """Yield outermost strings, f-strings and concatenations, with the function that contains them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant | ast.JoinedStr | ast.BinOp):
            if not isinstance(node, ast.Expr):  # not a docstring
                yield child, function
        elif _is_removal(child):
            yield _removal(child), function
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _texts(child, f"{function}.{child.name}" if function else child.name)
        elif isinstance(child, ast.ClassDef):
            yield from _texts(child, child.name)
        else:
            yield from _texts(child, function)


def _may_be_sql(expression: ast.expr) -> bool:
    """Check the first words, unless they are computed."""
    first: ast.AST = expression
    while isinstance(first, ast.BinOp):
        first = first.left
    if isinstance(first, ast.JoinedStr) and first.values:
        if isinstance(first.values[0], ast.FormattedValue):
            return bool(_READS.search(ast.unparse(first)))
        first = first.values[0]
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and bool(_OPENS.match(first.value))


def _is_removal(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == remove_due.__name__


def _removal(node: Any) -> ast.expr:  # a call, see `_is_removal`
    template = "'delete from ' + str({0}) + ' where ctid = any(array(select ctid from ' + str({0})"
    spelled = (template + " + ' where ' + {1} + ' limit 10000))'").format(*map(ast.unparse, node.args[1:3]))
    expression = ast.parse(spelled, mode="eval").body
    for part in ast.walk(expression):
        ast.copy_location(part, node)
    return expression
