"""Where the index stands: the one row that moves in the transaction of the events it stands for."""

from typing import Final

import attrs

from coordinatord.store.database import Connection
from coordinatord.store.lines import Line
from coordinatord.store.notices import INDEX_MOVED


@attrs.frozen(slots=True)
class Position:
    """The last block indexed. While `rebuilding`, the tables are being replayed and must not be read."""

    block_number: int
    block_hash: bytes
    block_time: int
    rebuilding: bool


_READ: Final = "select block_number, block_hash, block_time, rebuilding from index_position"


async def read_position(connection: Connection) -> Position | None:
    """None before the first block was indexed."""
    row = await connection.fetchrow(_READ)
    return Position(**row) if row is not None else None


async def read_position_in_time(line: Line) -> Position | None:
    """The same; Retryable when the database does not answer, or not soon."""
    rows = await line.fetch(_READ)
    return Position(**rows[0]) if rows else None


async def move_position(connection: Connection, position: Position) -> None:
    """Also tells whoever waits for the index to move; they hear it when the transaction commits."""
    await connection.execute(
        "with moved as ("
        " insert into index_position (block_number, block_hash, block_time, rebuilding) values ($1, $2, $3, $4)"
        " on conflict (only_row) do update set block_number = excluded.block_number,"
        " block_hash = excluded.block_hash, block_time = excluded.block_time, rebuilding = excluded.rebuilding)"
        " select pg_notify($5, $1::bigint::text)",
        position.block_number,
        position.block_hash,
        position.block_time,
        position.rebuilding,
        INDEX_MOVED,
    )
