"""Content whose job has ended: kept for the retention period where the job settled, for a short while otherwise.

A reorganisation may give a job its life back: what was about to go is then kept as before.
"""

from typing import Final

from coordinatord.store.database import Connection

_TABLES: Final = (("objects", "subject"), ("files", "held_for"))
_ALIVE: Final = "(j.state = 1 or (j.state = 0 and j.expires_at >= p.block_time))"
# A job that the outbox or a batch may post yet, or has posted in a block that the index does not show.
_COMING: Final = (
    "(exists (select from relays r where r.subject = t.{job} and r.kind = 'post' and r.state in ('queued', 'signed',"
    " 'mined')) or exists (select from batch_lines l where l.job_id = t.{job} and l.relay_id is not null"
    " and l.code is null and l.result is null))"
)


async def decide(connection: Connection, *, retention_seconds: int, unsettled_seconds: int) -> None:
    """Shorten the life of attached content whose job ended without a result, or was never posted; nothing while the
    index is being rebuilt."""
    for table, job in _TABLES:
        await connection.execute(
            f"update {table} t set decided = false, expires_at = t.created_at + $1 * interval '1 second'"
            f" from jobs j cross join index_position p where t.attached and t.decided and t.removing_until is null"
            f" and t.expires_at < clock_timestamp() and t.created_at + $1 * interval '1 second' > clock_timestamp()"
            f" and j.job_id = t.{job} and (j.state = 2 or {_ALIVE})",
            retention_seconds,
        )
        await connection.execute(
            f"update {table} t set decided = true, expires_at = case when e.settled then t.expires_at"
            " else least(t.expires_at, clock_timestamp() + $1 * interval '1 second') end"
            f" from (select t.ctid as place, j.state is not distinct from 2 as settled from index_position p,"
            f" {table} t left join jobs j on j.job_id = t.{job}"
            f" where t.attached and not t.decided and t.{job} is not null and not p.rebuilding"
            f" and case when j.job_id is null then not {_COMING.format(job=job)} else not {_ALIVE} end) e"
            " where t.ctid = e.place",
            unsettled_seconds,
        )
