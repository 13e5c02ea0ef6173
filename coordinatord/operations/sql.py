"""Claimed jobs whose provider missed its window, by the clock of the chain."""

from collections.abc import Collection

from coordinatord.book.sql import POSTED_COLUMNS, posted_job
from coordinatord.chain.registries import PostedOrder
from coordinatord.database.connections import Connection


async def overdue_jobs(connection: Connection, limit: int, but_not: Collection[bytes]) -> dict[bytes, PostedOrder]:
    """Terms by job id, oldest claim first, without jobs named in `but_not`; none while the index is being rebuilt."""
    rows = await connection.fetch(
        f"select {POSTED_COLUMNS} from jobs j, index_position p where j.state = 1 and not p.rebuilding"
        " and j.claimed_at + j.sla_secs < p.block_time and not j.job_id = any($2::bytea[])"
        " order by j.claimed_at limit $1",
        limit,
        list(but_not),
    )
    return {row["job_id"]: posted_job(row).posted for row in rows}
