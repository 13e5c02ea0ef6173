"""Query on the sums of an owner's jobs."""

import asyncpg

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import ARE_JOBS_COUNTED, SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows


async def read_summary(database: Database, owner: bytes) -> tuple[Snapshot, list[asyncpg.Record]]:
    """Return the snapshot and the rows: first the total of all models, then the sums of each model."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.*, {ARE_JOBS_COUNTED} as counted, {SNAPSHOT_COLUMNS} from index_position p left join lateral ("
            "select model_id, coalesce(sum(jobs), 0)::bigint as jobs, coalesce(sum(completed), 0)::bigint as completed,"
            " coalesce(sum(escrowed), 0)::text as escrowed"
            " from owner_sums where owner = $1 group by grouping sets ((), (model_id))) s on true"
            " order by s.model_id nulls first",
            owner,
        )
    snapshot = snapshot_from_rows(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has not counted its jobs yet; try again")
    return snapshot, rows
