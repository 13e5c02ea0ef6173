"""Removal of relays and transactions that ended long ago: no caller waits for them, and no reorg reaches them."""

from typing import Final

from coordinatord.chain.relayer.endings_sql import ENDING
from coordinatord.storage.database.connections import Connection

_LONG_ENDED: Final = (
    "select id from relays where ended_at < statement_timestamp() - $1 * interval '1 second'"
    " and state not in ('queued', 'signed') order by ended_at limit $2"
)


async def drop_ended(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Drop relays and return their number. Keep which transaction ended a job."""
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
    """Drop those of the `limit` oldest transactions that carry no relay any more. Return their number. Transactions
    become due in their order, so nothing behind the oldest needs a look."""
    dropped = await connection.fetch(
        "with oldest as (select id, chain_id, account, nonce from (select * from relay_txs order by id limit $2) t"
        " where (t.block_number is not null or t.lost)"
        " and t.created_at < clock_timestamp() - $1 * interval '1 second'),"
        " done as (select t.id from oldest t where not exists (select 1 from relays r where r.tx_id = t.id)"
        # The newest transaction of an account stays whatever its age: it says which nonce comes next.
        " and t.nonce < (select max(u.nonce) from relay_txs u"
        "  where u.chain_id = t.chain_id and u.account = t.account)),"
        " versions as (delete from relay_tx_versions where tx_id in (select id from done))"
        " delete from relay_txs where id in (select id from done) returning id",
        older_than_seconds,
        limit,
    )
    return len(dropped)
