"""Expired jobs: an open one past its `expires_at` stands in the table as the registry tells it, ended, because of 5.

No event says so. The mark is a function of the row and of the indexed block's time, which is why it is not journaled:
whoever moves the position brings the marks along, in the same transaction. A first backfill marks when it is done,
together with building the indexes. The statements are in the migration.
"""

from coordinatord.store.database import Connection


async def mark_expired(connection: Connection, block_time: int) -> None:
    """The position moves forward to a block of this time."""
    await connection.execute("select mark_expired_jobs($1)", block_time)


async def match_expired(connection: Connection, block_time: int) -> None:
    """The position moves back to a block of this time: some were not expired then, and rows that were put back may be
    from before their mark."""
    await connection.execute("select unmark_expired_jobs($1)", block_time)
    await connection.execute("select mark_expired_jobs($1)", block_time)
