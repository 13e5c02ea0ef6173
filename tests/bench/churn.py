"""Bloat of the tables that jobs pass through, at full speed.

The tables hold a window of jobs, as retention times would keep. The window is rewritten many times: new jobs come, and
the oldest are removed. At 80 jobs a second, tables that keep an hour turn over 24 times a day. Each job goes through
its real states (relay, transaction, lease, events, sums), with a few hundred jobs per statement. Autovacuum uses the
settings of config/postgresql, but runs every second instead of every minute, because the day is compressed too.

The figure is the maximum of a table's bytes per job, with indexes, at the ends of the last windows, divided by the
value when the window was first full. 2 means that the table has doubled.
"""

import re
import tempfile
from pathlib import Path
from typing import Final

import asyncpg
from anyio.from_thread import start_blocking_portal

from coordinatord.storage.database.migration import migrate
from devnet.ports import pick_free
from devnet.postgres import running_postgres
from tests.bench.row import Row

WINDOW: Final = 20_000  # stored jobs
TURNS: Final = 24  # of the window
STEP: Final = 500  # jobs at a time
LOOKS: Final = 5  # measurements of the sizes
MOST: Final = 2.0
_CONF: Final = Path(__file__).parents[2] / "config" / "postgresql" / "coordinatord.conf"
_AUTOVACUUM: Final = re.compile(r"^(autovacuum\w+) = (\S+)", re.MULTILINE)

_JOBS: Final = "from generate_series($1::bigint, $2::bigint) as n"
_ID: Final = "sha256(n::text::bytea)"
_IDS: Final = f"any(array(select {_ID} {_JOBS}))"
_SIGNER: Final = "substr(sha256((n % 100)::text::bytea), 1, 20)"
_TXS: Final = "chain_id = 1 and account = 'a' and nonce between $1 and $2"
_ENDING: Final = "state = 'mined' and kind in ('settle', 'fail', 'cancel', 'reclaim')"
# Life of jobs $1 to $2, and the removal of their rows after their retention.
_LIVED: Final = (
    "insert into relays (kind, subject, dedupe, target, calldata, priority, signer, gas_estimate, amount)"
    f" select kind, {_ID}, sha256({_ID} || kind::bytea), '', decode(repeat('00', 400), 'hex'), 1, {_SIGNER}, 9, 9"
    f" {_JOBS} cross join unnest(array['post', 'claim', 'settle']) as kind",
    "insert into relay_txs (chain_id, account, nonce, target, calldata, gas, priority, purpose)"
    f" select 1, 'a', n, '', decode(repeat('00', 1200), 'hex'), 1, 1, 'relay' {_JOBS}",
    f"insert into relay_tx_versions (hash, tx_id, raw, max_fee, max_tip) select {_ID}, t.id,"
    f" decode(repeat('00', 1300), 'hex'), 1, 1 {_JOBS} join relay_txs t on {_TXS} and t.nonce = n",
    "update relays r set state = 'signed', tx_id = t.id, call_index = 0"
    f" {_JOBS} join relay_txs t on {_TXS} and t.nonce = n where r.subject = {_ID} and r.state in ('queued', 'signed')",
    f"update relay_txs set broadcast_at = clock_timestamp() where {_TXS}",
    "update relay_txs set mined_hash = sha256(nonce::text::bytea), block_number = nonce, succeeded = true"
    f" where {_TXS}",
    "update relays set state = 'mined', mined_block = 1, ended_at = clock_timestamp()"
    f" where subject = {_IDS} and state in ('queued', 'signed')",
    f"insert into leases select {_ID}, n % 50, 1, clock_timestamp(), 0 {_JOBS}",
    f"update leases set expires_at = clock_timestamp() + interval '1 minute' where job_id = {_IDS}",
    f"delete from leases where job_id = {_IDS}",
    f"insert into events (kind, block_number, block_time, job_id) select kind, n, n, {_ID}"
    f" {_JOBS} cross join generate_series(1, 3) as kind",
    f"insert into gas_bookings select t.id, {_SIGNER}, 'post', false, 1, 1 {_JOBS}"
    f" join relay_txs t on {_TXS} and t.nonce = n",
    f"insert into job_ends (job_id, tx_hash) select {_ID}, {_ID} {_JOBS}",
)
_REMOVED: Final = (
    f"delete from relays where state = 'mined' and kind in ('post', 'claim') and subject = {_IDS}",
    f"delete from relays where {_ENDING} and subject = {_IDS}",
    f"delete from relay_tx_versions where hash = {_IDS}",
    f"delete from relay_txs where {_TXS}",
    f"delete from job_ends where job_id = {_IDS}",
    "delete from events where id between $1 * 3 - 2 and $2 * 3",
)
_TABLES: Final = ("relays", "relay_txs", "relay_tx_versions", "leases", "events", "gas_bookings", "job_ends")


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal("asyncio") as portal:
        places = [Path(folder) / name for name in ("pg", "logs")]
        for place in places:
            place.mkdir()
        settings = [f"{name}={value}" for name, value in _AUTOVACUUM.findall(_CONF.read_text(encoding="utf-8"))]
        running = running_postgres(pick_free(), *places, *settings, "autovacuum_naptime=1s", "shared_buffers=512MB")
        with portal.wrap_async_context_manager(running) as postgres:
            full, later = portal.call(_churned, postgres.url())
    return [
        Row.of(
            f"most bytes of {table} at the ends of the last {LOOKS} of {TURNS} windows of {WINDOW:,} jobs",
            [sizes[table] / WINDOW for sizes in later],
            "bytes a job",
            "its bytes when the window was first full",
            full[table] / WINDOW,
            at_most=MOST,
            by=max,
        )
        for table in _TABLES
    ]


async def _churned(url: str) -> tuple[dict[str, int], list[dict[str, int]]]:
    """Return bytes of each table with its indexes, when the window is first full and after each of the last ones."""
    connection = await asyncpg.connect(url)
    await migrate(connection)
    full: dict[str, int] = {}
    later = []
    for first in range(1, WINDOW * TURNS + 1, STEP):
        await _run(connection, _LIVED, first)
        if first > WINDOW:
            full = full or await _sizes(connection)
            await _run(connection, _REMOVED, first - WINDOW)
        window, rest = divmod(first - 1 + STEP, WINDOW)
        if not rest and window > TURNS - LOOKS:
            later.append(await _sizes(connection))
    left = await connection.fetchval("select count(*) from relays")
    if left != 3 * WINDOW:
        raise AssertionError(f"the window is of {3 * WINDOW} relays, and {left} are left")
    await connection.close()
    return full, later


async def _run(connection: "asyncpg.Connection[asyncpg.Record]", statements: tuple[str, ...], first: int) -> None:
    for statement in statements:
        await connection.execute(statement, first, first + STEP - 1)


async def _sizes(connection: "asyncpg.Connection[asyncpg.Record]") -> dict[str, int]:
    return {
        table: await connection.fetchval("select pg_total_relation_size($1::text::regclass)", table)
        for table in _TABLES
    }


if __name__ == "__main__":
    for row in rows():
        print(row)
