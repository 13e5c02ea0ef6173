"""Position of the index: one row, updated in the transaction that applies the block's events."""

from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import INDEX_MOVED
from coordinatord.storage.database.prepared import PreparedConnection


@attrs.frozen(slots=True)
class IndexPosition:
    """Last indexed block. While `rebuilding`, requests must not read the tables."""

    block_number: int
    block_hash: bytes
    block_time: int
    rebuilding: bool


_SELECT_POSITION: Final = "select block_number, block_hash, block_time, rebuilding from index_position"


async def read_position(connection: Connection) -> IndexPosition | None:
    """Return the position, or None before the first block is indexed."""
    row = await connection.fetchrow(_SELECT_POSITION)
    return IndexPosition(**row) if row is not None else None


async def read_position_within_timeout(reader: PreparedConnection) -> IndexPosition | None:
    """Return the position, or raise Retryable when the database does not answer in time."""
    rows = await reader.fetch(_SELECT_POSITION)
    return IndexPosition(**rows[0]) if rows else None


async def move_position(connection: Connection, position: IndexPosition) -> None:
    """Move the position, and notify listeners when the transaction commits."""
    await connection.execute(
        "with moved as ("
        " insert into index_position (block_number, block_hash, block_time, rebuilding)"
        " values ($1, $2, $3, $4)"
        " on conflict (only_row) do update set block_number = excluded.block_number,"
        " block_hash = excluded.block_hash, block_time = excluded.block_time, rebuilding = excluded.rebuilding)"
        " select pg_notify($5, $1::bigint::text)",
        position.block_number,
        position.block_hash,
        position.block_time,
        position.rebuilding,
        INDEX_MOVED,
    )
