"""Relays that ended long ago: nobody waits for them, and no reorg reaches them any more."""

from coordinatord.store.database import Connection


async def drop_ended(connection: Connection, older_than_seconds: int, limit: int) -> int:
    """Drop relays, and then transactions that carry none any more; returns how many relays went."""
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
