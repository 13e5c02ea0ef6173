"""Keep the transactions that began and ended jobs until no caller waits for them and no reorg can reach them."""

from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

# Literals instead of parameters, so that PostgreSQL uses the partial indexes with the same conditions.
IS_MINED_START: Final = "r.state = 'mined' and r.kind in ('post', 'claim')"
IS_MINED_EXIT: Final = "r.state = 'mined' and r.kind in ('settle', 'fail', 'reclaim', 'cancel')"
_SELECT_LONG_ENDED: Final = (
    "select id from relays where ended_at < statement_timestamp() - $1 * interval '1 second'"
    " and state not in ('queued', 'signed') order by ended_at limit $2"
)


async def find_ending_tx(connection: Connection, job_id: bytes) -> bytes | None:
    """Return the hash of the transaction that ended a job, or None when the hash is no longer kept. For an expired job,
    return the hash of a cancel that was mined after the expiry and changed nothing."""
    found: bytes | None = await connection.fetchval(
        "select coalesce((select t.mined_hash from relays r join relay_txs t on t.id = r.tx_id"
        f" where r.subject = $1 and {IS_MINED_EXIT} order by r.id limit 1),"
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


async def read_job_transactions(connection: Connection, job_id: bytes) -> list[JobTransaction]:
    """Return the transactions of a job that were relayed here and are still kept, and its ending, oldest first."""
    relayed = " union all ".join(
        f"select r.id, r.kind, t.mined_hash, t.block_number from relays r join relay_txs t on t.id = r.tx_id"
        f" where r.subject = $1 and {condition}"
        for condition in (IS_MINED_START, IS_MINED_EXIT)
    )
    rows = await connection.fetch(f"{relayed} order by 1", job_id)
    found = [JobTransaction(*row[1:]) for row in rows if row["mined_hash"] is not None]
    ending = await find_ending_tx(connection, job_id)
    if ending is not None and all(each.tx_hash != ending for each in found):
        found.append(JobTransaction("end", ending, None))
    return found


async def remember_ending(connection: Connection, job_id: bytes, tx_hash: bytes) -> None:
    await connection.execute(
        "insert into job_ends (job_id, tx_hash) values ($1, $2) on conflict do nothing", job_id, tx_hash
    )


async def drop_endings(connection: Connection, older_than_seconds: int) -> None:
    """Delete old endings, which can be read from the chain again."""
    # A literal, because with a parameter the planner would expect a third of the rows to be due.
    age = f"interval '{older_than_seconds:d} seconds'"
    await remove_due(connection, "job_ends", f"kept_at < statement_timestamp() - {age}")


async def drop_ended_relays(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Delete old relays and return their number. Keep the hashes of transactions that ended jobs."""
    await connection.execute(
        "insert into job_ends (job_id, tx_hash) select r.subject, t.mined_hash from relays r"
        f" join relay_txs t on t.id = r.tx_id where r.id in ({_SELECT_LONG_ENDED}) and {IS_MINED_EXIT}"
        " on conflict do nothing",
        older_than_seconds,
        limit,
    )
    dropped = await connection.fetch(
        f"delete from relays where id in ({_SELECT_LONG_ENDED}) returning id", older_than_seconds, limit
    )
    return len(dropped)


async def drop_unused_transactions(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Delete transactions that carry no relays, among the `limit` oldest transactions. Transactions with lower
    ids become due first. Return the number of deleted transactions."""
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
