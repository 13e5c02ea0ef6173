"""Undo indexed blocks in a reorg, from saved copies of the rows that each block changed.

Triggers save changed rows (see 0001_schema.sql) while `svc.journal_block` is set. A new job needs no saved row: its
`posted_block` suffices. `index_blocks` holds a gapless run of blocks that ends at the index's position. All blocks
except the lowest are journaled, so the index can return to any block of the run.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection

# Tables with the trigger `save_for_undo`, and their primary keys.
UNDOABLE_TABLES: Final = {
    "jobs": ("job_id",),
    "models": ("model_id",),
    "slas": ("sla_secs",),
    "fees": ("only_row",),
    "providers": ("provider_id",),
    "provider_models": ("provider_id", "model_id"),
    "asks": ("provider_id", "model_id", "sla"),
    "ask_times": ("provider_id",),
    "allowlist": ("key",),
}


@attrs.frozen(slots=True)
class IndexedBlock:
    number: int
    hash: bytes
    parent_hash: bytes
    time: int


async def start_journal(connection: Connection, block_number: int) -> None:
    """Save each row that the rest of the transaction changes, under `block_number`."""
    await connection.execute("select set_config('svc.journal_block', $1::bigint::text, true)", block_number)


async def append_index_blocks(connection: Connection, blocks: Sequence[IndexedBlock], undo_window: int) -> None:
    """Append journaled blocks to `index_blocks`, and drop blocks more than `undo_window` below the last one."""
    await connection.execute(
        "with dropped as (delete from index_blocks where number < $5),"
        " forgotten as (delete from undo_journal where block_number <= $5)"
        " insert into index_blocks (number, hash, parent_hash, time)"
        " select * from unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[])",
        *zip(*[attrs.astuple(block) for block in blocks], strict=True),
        blocks[-1].number - undo_window,
    )


async def restart_index_blocks(connection: Connection, block: IndexedBlock) -> None:
    """Empty `index_blocks`, and start it again at `block`. Earlier changes were not journaled and cannot be undone.

    This is one statement because each round trip delays a backfill.
    """
    await connection.execute(
        "with forgotten as (delete from undo_journal), dropped as (delete from index_blocks)"
        " insert into index_blocks (number, hash, parent_hash, time) values ($1, $2, $3, $4)",
        block.number,
        block.hash,
        block.parent_hash,
        block.time,
    )


async def read_index_blocks(connection: Connection, highest: int, count: int) -> list[IndexedBlock]:
    """Return up to `count` blocks of `index_blocks` at and below `highest`, highest first."""
    rows = await connection.fetch(
        "select number, hash, parent_hash, time from index_blocks where number <= $1 order by number desc limit $2",
        highest,
        count,
    )
    return [IndexedBlock(**row) for row in rows]


async def undo_above(connection: Connection, block_number: int) -> None:
    """Restore every row to its state at `block_number`, a block in `index_blocks`."""
    await connection.execute("delete from jobs where posted_block > $1", block_number)
    for table, key in UNDOABLE_TABLES.items():
        saved = ", ".join(f"r.{column}" for column in key)
        kept_filter = " and (o.r).posted_block <= $2" if table == "jobs" else ""
        # The interpolated names are constants of this module.
        journal = (
            f" from undo_journal j cross join jsonb_populate_record(null::{table}, j.saved) r"
            " where j.table_name = $1 and j.block_number > $2"
        )
        await connection.execute(
            f"delete from {table} where ({', '.join(key)}) in (select {saved}{journal})", table, block_number
        )
        # The oldest saved entry of a row above the block holds the row's state at the block.
        await connection.execute(
            f"insert into {table} select (o.r).* from ("
            f" select distinct on ({saved}) j.inserted, r{journal} order by {saved}, j.seq) o"
            f" where not o.inserted{kept_filter}",
            table,
            block_number,
        )
    await connection.execute("delete from undo_journal where block_number > $1", block_number)
    await connection.execute("delete from index_blocks where number > $1", block_number)


async def empty_index(connection: Connection) -> None:
    """Empty every table that the indexer fills."""
    await connection.execute(
        f"truncate {', '.join(UNDOABLE_TABLES)}, job_counts, owner_sums, undo_journal, index_blocks"
    )
