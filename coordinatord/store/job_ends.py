"""Which transaction ended a job: of those that were relayed here, and of those that were looked up on the chain."""

from typing import Final

from coordinatord.store.database import Connection

# Spelled out, because an index has the same condition.
ENDING: Final = "r.state = 'mined' and r.kind in ('settle', 'fail', 'reclaim', 'cancel')"


async def ending_of(connection: Connection, job_id: bytes) -> bytes | None:
    """The hash, or None when it is not known here. Of a job that had expired, that of its cancel, which changed
    nothing."""
    found: bytes | None = await connection.fetchval(
        "select coalesce((select t.mined_hash from relays r join relay_txs t on t.id = r.tx_id"
        f" where r.subject = $1 and {ENDING} order by r.id limit 1),"
        " (select tx_hash from job_ends where job_id = $1))",
        job_id,
    )
    return found


async def remember_ending(connection: Connection, job_id: bytes, tx_hash: bytes) -> None:
    await connection.execute(
        "insert into job_ends (job_id, tx_hash) values ($1, $2) on conflict do nothing", job_id, tx_hash
    )
