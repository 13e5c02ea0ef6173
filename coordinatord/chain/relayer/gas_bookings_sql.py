"""Gas bookings: gas that each mined transaction used, by signer and kind. Budgets sum the bookings of a day.

A transaction is booked once, in the database transaction that records how its relays ended. A reorg that removes its
block removes its bookings. When the transaction is mined again, it is booked again.
"""

from collections.abc import Sequence

from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.storage.database.columns import columns
from coordinatord.storage.database.connections import Connection


async def book(connection: Connection, mined: Sequence[MinedTx]) -> dict[str, int]:
    """Book the gas of mined transactions to the signers of their relays, in proportion to the estimates. Skip
    transactions that are booked already. Return the booked gas by kind.

    Call it before any relay goes back to the queue: a requeued relay is no longer bound to its transaction.
    """
    rows = await connection.fetch(
        "with used as (select u.* from unnest($1::bigint[], $2::bigint[], $3::boolean[]) as u(tx_id, gas, fills)"
        "  where not exists (select from gas_bookings b where b.tx_id = u.tx_id)),"
        " carried as (select u.tx_id, u.gas, coalesce(r.signer, ''::bytea) as signer, r.kind, r.newcomer,"
        "  greatest(r.gas_estimate, 1)::numeric as weight,"
        "  sum(greatest(r.gas_estimate, 1)) over (partition by u.tx_id order by r.id) as upto,"
        "  sum(greatest(r.gas_estimate, 1)) over (partition by u.tx_id) as whole"
        "  from used u join relays r on r.tx_id = u.tx_id where not u.fills),"
        # Shares are differences of running sums, so they add up to the gas used, to the unit.
        " shares as (select tx_id, signer, kind, newcomer,"
        "  (div(gas * upto, whole) - div(gas * (upto - weight), whole))::bigint as gas from carried"
        "  union all select u.tx_id, ''::bytea, 'fill', false, u.gas from used u"
        "  where u.fills or not exists (select from relays r where r.tx_id = u.tx_id)),"
        " rows as (insert into gas_bookings (tx_id, signer, kind, newcomer, hour, gas)"
        "  select tx_id, signer, kind, newcomer, current_hour(), sum(gas) from shares"
        "  group by tx_id, signer, kind, newcomer returning kind, gas)"
        " select kind, sum(gas)::bigint as gas from rows group by kind",
        *columns(mined, "tx_id", "gas_used", "fills"),
    )
    return {row["kind"]: row["gas"] for row in rows}


async def unbook(connection: Connection, tx_ids: Sequence[int]) -> None:
    """Remove the bookings of transactions in blocks that are no longer part of the chain."""
    await connection.execute("delete from gas_bookings where tx_id = any($1::bigint[])", tx_ids)
