"""Position of the index: the one row that moves in the same transaction as the events of its block."""

from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.notices import INDEX_MOVED
from coordinatord.storage.database.prepared import PreparedConnection


@attrs.frozen(slots=True)
class IndexPosition:
    """The last block indexed. While `rebuilding`, the tables are being replayed and must not be read."""

    block_number: int
    block_hash: bytes
    block_time: int
    rebuilding: bool


_READ: Final = "select block_number, block_hash, block_time, rebuilding from index_position"


async def read_position(connection: Connection) -> IndexPosition | None:
    """None before the first block was indexed."""
    row = await connection.fetchrow(_READ)
    return IndexPosition(**row) if row is not None else None


async def read_position_in_time(line: PreparedConnection) -> IndexPosition | None:
    """The same; Retryable when the database does not answer, or not soon."""
    rows = await line.fetch(_READ)
    return IndexPosition(**rows[0]) if rows else None


async def move_position(connection: Connection, position: IndexPosition) -> None:
    """Also tells whoever waits for the index to move; they hear it when the transaction commits."""
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
