"""Snapshot of the index: the block that rows belong to, read in the same statement as the rows."""

import asyncpg
import attrs

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection


@attrs.frozen(slots=True)
class Snapshot:
    block_number: int
    block_hash: bytes
    block_time: int


# Columns of the snapshot, for statements that select from `index_position p`.
SNAPSHOT_COLUMNS = (
    "p.block_number as as_of_number, p.block_hash as as_of_hash, p.block_time as as_of_time, p.rebuilding"
)
# Condition that is false during the first backfill, which counts jobs only at its end.
ARE_JOBS_COUNTED = (
    "exists (select from pg_trigger where tgrelid = 'jobs'::regclass and tgname = 'count_insert' and tgenabled <> 'D')"
)


async def read_snapshot(reader: PreparedConnection) -> Snapshot:
    """Read the current snapshot of the index."""
    return snapshot_from_rows(await reader.fetch(f"select {SNAPSHOT_COLUMNS} from index_position p"))


def snapshot_from_rows(rows: "list[asyncpg.Record]") -> Snapshot:
    """Return the snapshot of rows selected `from index_position p left join ...`. No rows mean that the index has no
    blocks yet."""
    if not rows:
        raise Retryable("not_ready", "the index has no blocks yet")
    row = rows[0]
    if row["rebuilding"]:  # the tables are being replayed, and match no block
        raise Retryable("not_ready", "the index is being rebuilt")
    return Snapshot(row["as_of_number"], row["as_of_hash"], row["as_of_time"])


async def read_seconds_per_block(connection: Connection) -> float | None:
    """Return seconds per block, or None while the indexed blocks are too few or all have the same time."""
    seconds: float | None = await connection.fetchval(
        "select (max(time) - min(time))::float8 / nullif(max(number) - min(number), 0) from index_blocks"
    )
    return seconds or None
