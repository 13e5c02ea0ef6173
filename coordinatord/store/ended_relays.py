"""Relays that ended long ago: nobody waits for them, and no reorg reaches them any more."""

from coordinatord.store.database import Connection
from coordinatord.store.job_ends import ENDING


async def drop_ended(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Drop relays, and then transactions that carry none any more; returns how many relays went.

    Which transaction ended a job stays known.
    """
    await connection.execute(
        "insert into job_ends (job_id, tx_hash) select r.subject, t.mined_hash from relays r"
        " join relay_txs t on t.id = r.tx_id where r.id in (select id from relays where ended_at < clock_timestamp()"
        " - $1 * interval '1 second' and state not in ('queued', 'signed') order by ended_at limit $2)"
        f" and {ENDING} on conflict do nothing",
        older_than_seconds,
        limit,
    )
    dropped = await connection.fetch(
        "delete from relays where id in (select id from relays where ended_at < clock_timestamp()"
        " - $1 * interval '1 second' and state not in ('queued', 'signed') order by ended_at limit $2) returning id",
        older_than_seconds,
        limit,
    )
    # The newest transaction of an account stays whatever its age: it says which nonce comes next.
    await connection.execute(
        "with done as (select t.id from relay_txs t where (t.block_number is not null or t.lost)"
        " and t.created_at < clock_timestamp() - $1 * interval '1 second'"
        " and not exists (select 1 from relays r where r.tx_id = t.id)"
        " and t.nonce < (select max(u.nonce) from relay_txs u"
        "  where u.chain_id = t.chain_id and u.account = t.account)"
        " order by t.id limit $2),"
        " versions as (delete from relay_tx_versions where tx_id in (select id from done))"
        " delete from relay_txs where id in (select id from done)",
        older_than_seconds,
        limit,
    )
    return len(dropped)
