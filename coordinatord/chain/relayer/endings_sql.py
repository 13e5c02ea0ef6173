"""Transactions that began and ended jobs, kept for a while, and the deletion of old ones that no caller waits for
and no reorg reaches."""

from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

# Written out, because indexes have the same conditions.
BEGINNING: Final = "r.state = 'mined' and r.kind in ('post', 'claim')"
ENDING: Final = "r.state = 'mined' and r.kind in ('settle', 'fail', 'reclaim', 'cancel')"
_LONG_ENDED: Final = (
    "select id from relays where ended_at < statement_timestamp() - $1 * interval '1 second'"
    " and state not in ('queued', 'signed') order by ended_at limit $2"
)


async def ending_of(connection: Connection, job_id: bytes) -> bytes | None:
    """Return the hash of the transaction that ended a job, or None when it is no longer kept. For an expired job, it
    is the hash of its cancel, which changed nothing."""
    found: bytes | None = await connection.fetchval(
        "select coalesce((select t.mined_hash from relays r join relay_txs t on t.id = r.tx_id"
        f" where r.subject = $1 and {ENDING} order by r.id limit 1),"
        " (select tx_hash from job_ends where job_id = $1))",
        job_id,
    )
    return found


@attrs.frozen(slots=True)
class JobTransaction:
    """Transaction of a job. `block_number` is None if only the hash of an ending is kept."""

    kind: str
    tx_hash: bytes
    block_number: int | None


async def transactions_of(connection: Connection, job_id: bytes) -> list[JobTransaction]:
    """Return the transactions of a job that were relayed here and are still kept, and its ending, oldest first."""
    relayed = " union all ".join(
        f"select r.id, r.kind, t.mined_hash, t.block_number from relays r join relay_txs t on t.id = r.tx_id"
        f" where r.subject = $1 and {which}"
        for which in (BEGINNING, ENDING)
    )
    rows = await connection.fetch(f"{relayed} order by 1", job_id)
    found = [JobTransaction(*row[1:]) for row in rows if row["mined_hash"] is not None]
    ending = await ending_of(connection, job_id)
    if ending is not None and all(each.tx_hash != ending for each in found):
        found.append(JobTransaction("end", ending, None))
    return found


async def remember_ending(connection: Connection, job_id: bytes, tx_hash: bytes) -> None:
    await connection.execute(
        "insert into job_ends (job_id, tx_hash) values ($1, $2) on conflict do nothing", job_id, tx_hash
    )


async def drop_endings(connection: Connection, older_than_seconds: int) -> None:
    """Delete old endings, which can be read from the chain again."""
    # Written out: with a parameter, the planner expects a third of the rows to be due.
    age = f"interval '{older_than_seconds:d} seconds'"
    await remove_due(connection, "job_ends", f"kept_at < statement_timestamp() - {age}")


async def drop_ended(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Delete old relays and return their number. Keep the hashes of transactions that ended jobs."""
    await connection.execute(
        "insert into job_ends (job_id, tx_hash) select r.subject, t.mined_hash from relays r"
        f" join relay_txs t on t.id = r.tx_id where r.id in ({_LONG_ENDED}) and {ENDING} on conflict do nothing",
        older_than_seconds,
        limit,
    )
    dropped = await connection.fetch(
        f"delete from relays where id in ({_LONG_ENDED}) returning id", older_than_seconds, limit
    )
    return len(dropped)


async def drop_carriers(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Delete transactions without relays among the `limit` oldest ones. Return their number.

    Transactions become due in order, so later ones need no check.
    """
    dropped = await connection.fetch(
        "with oldest as (select id, chain_id, account, nonce from (select * from relay_txs order by id limit $2) t"
        " where (t.block_number is not null or t.lost)"
        " and t.created_at < clock_timestamp() - $1 * interval '1 second'),"
        " done as (select t.id from oldest t where not exists (select 1 from relays r where r.tx_id = t.id)"
        # The newest transaction of an account is never deleted, because it determines the next nonce.
        " and t.nonce < (select max(u.nonce) from relay_txs u"
        "  where u.chain_id = t.chain_id and u.account = t.account)),"
        " versions as (delete from relay_tx_versions where tx_id in (select id from done))"
        " delete from relay_txs where id in (select id from done) returning id",
        older_than_seconds,
        limit,
    )
    return len(dropped)
