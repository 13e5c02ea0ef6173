"""Delete expired rows in batches.

After a pause of the janitor or a lowered setting, millions of rows may have expired. A single statement for all of them
would hold their locks, block vacuum and exceed the statement timeout at every attempt.
"""

from typing import Final

from coordinatord.storage.database.connections import Connection

# A delete of this size takes some tens of milliseconds.
ROWS_PER_DELETE: Final = 10_000


async def remove_due(connection: Connection, table: str, condition: str, *arguments: object) -> int:
    """Delete the rows of `table` that match `condition`, which must be indexed. Return their number. Call this
    outside of a transaction, so that deleted batches stay deleted if a later batch fails."""
    removed = 0
    while True:
        command_tag = await connection.execute(
            f"delete from {table} where ctid = any("
            f"array(select ctid from {table} where {condition} limit {ROWS_PER_DELETE}))",
            *arguments,
        )
        removed += (deleted := int(command_tag.split()[-1]))
        if deleted < ROWS_PER_DELETE:
            return removed
