"""Claimed jobs whose provider missed its window, by the clock of the chain."""

from collections.abc import Collection

from coordinatord.store.database import Connection


async def overdue_jobs(connection: Connection, limit: int, but_not: Collection[bytes]) -> list[bytes]:
    """Job ids, oldest claim first, without those named in `but_not`; none while the index is being rebuilt."""
    rows = await connection.fetch(
        "select j.job_id from jobs j, index_position p where j.state = 1 and not p.rebuilding"
        " and j.claimed_at + j.sla_secs < p.block_time and not j.job_id = any($2::bytea[])"
        " order by j.claimed_at limit $1",
        limit,
        list(but_not),
    )
    return [r["job_id"] for r in rows]
