"""Where the index stood when rows were read: taken in the rows' own statement, so that both are of one moment."""

import asyncpg
import attrs

from coordinatord.base.errors import Retryable
from coordinatord.database.connections import PreparedConnection


@attrs.frozen(slots=True)
class Snapshot:
    block_number: int
    block_hash: bytes
    block_time: int


COLUMNS = "p.block_number as as_of_number, p.block_hash as as_of_hash, p.block_time as as_of_time, p.rebuilding"


async def read_snapshot(line: PreparedConnection) -> Snapshot:
    """Where the index stands now."""
    return snapshot_of(await line.fetch(f"select {COLUMNS} from index_position p"))


def snapshot_of(rows: "list[asyncpg.Record]") -> Snapshot:
    """Of rows selected `from index_position p left join ...`: at least one once the index has begun."""
    if not rows:
        raise Retryable("not_ready", "the index has not begun")
    row = rows[0]
    if row["rebuilding"]:  # the tables are being replayed: what they hold is of no block
        raise Retryable("not_ready", "the index is being rebuilt")
    return Snapshot(row["as_of_number"], row["as_of_hash"], row["as_of_time"])
