"""Removal of rows past their time, portion by portion.

What is due may be ten rows or, after the janitor was away or a setting was lowered, ten million. One statement over all
of them would hold their locks, keep vacuum waiting, and be cut off by its time limit, to begin anew for ever.
"""

from typing import Final

from coordinatord.storage.database.connections import Connection

PORTION: Final = 10_000  # rows of one statement: some tens of milliseconds


async def remove_due(connection: Connection, table: str, due: str, *arguments: object) -> int:
    """Delete the rows of `table` for which `due` holds, which an index finds; how many. Outside of any transaction, so
    that each portion stands when the next fails."""
    removed = 0
    while True:
        done = await connection.execute(
            f"delete from {table} where ctid = any(array(select ctid from {table} where {due} limit {PORTION}))",
            *arguments,
        )
        removed += (portion := int(done.split()[-1]))
        if portion < PORTION:
            return removed
