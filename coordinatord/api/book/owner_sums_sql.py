"""Sums of an owner's jobs."""

import attrs

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import JOBS_COUNTED, SNAPSHOT, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class OwnerSummary:
    """Sums over one model, or over all models when `model_id` is None."""

    model_id: int | None
    jobs: int
    completed: int
    priced: int
    escrowed: str


async def read_summary(database: Database, owner: bytes) -> tuple[Snapshot, list[OwnerSummary]]:
    """Return the total, then the sums of each model. Every job has a price."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.*, {JOBS_COUNTED} as counted, {SNAPSHOT} from index_position p left join lateral ("
            "select model_id, sum(jobs)::bigint as jobs, sum(completed)::bigint as completed,"
            " coalesce(sum(escrowed), 0)::text as escrowed"
            " from owner_sums where owner = $1 group by grouping sets ((), (model_id))) s on true"
            " order by s.model_id nulls first",
            owner,
        )
    snapshot = snapshot_of(rows)
    if not rows[0]["counted"]:
        raise Retryable("not_ready", "the index has not counted its jobs yet; try again")
    return snapshot, [
        OwnerSummary(row["model_id"], row["jobs"] or 0, row["completed"] or 0, row["jobs"] or 0, row["escrowed"])
        for row in rows
    ]
