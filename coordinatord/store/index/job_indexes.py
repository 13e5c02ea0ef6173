"""The secondary indexes of `jobs`, which a first backfill does without: the migration defines them, apart."""

from coordinatord.store.database import Connection


async def drop_job_indexes(connection: Connection) -> None:
    """For an empty table that nobody may read yet. Whoever does this builds them again before anyone may."""
    await connection.execute("select drop_job_indexes(), drop_owner_indexes()")


async def build_job_indexes(connection: Connection) -> None:
    """Build those that are missing; costs next to nothing when none is."""
    await connection.execute("select build_job_indexes(), build_owner_indexes()")
