"""Gas bookings: what each mined transaction cost, by signer and kind, and the sums that budgets are checked against.

A transaction is booked once, in the database transaction that records how its relays ended. A reorganisation that
unmakes its block takes out exactly what was booked, and it is booked again when it is mined again.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.chain.relayer.budgets_sql import ALL_NEWCOMERS
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

KEPT_DAYS: Final = 8  # at least: budgets look 7 days back

# What `rows` (signer, hour, kind, gas, newcomer) add to the sums, or with a minus take from them. In one order for all
# writers, or two accounts' relayers wait for each other.
_ADD: Final = (
    "insert into gas_spent as s (signer, hour, kind, gas)"
    " select x.signer, x.hour, x.kind, {sign}sum(x.gas) from ("
    "  select r.signer, r.hour, r.kind, r.gas from rows r"
    "  union all select {newcomers}, r.hour, r.kind, r.gas from rows r where r.newcomer) x"
    " group by x.signer, x.hour, x.kind order by x.signer, x.hour, x.kind"
    " on conflict (signer, hour, kind) do update set gas = s.gas + excluded.gas"
)


@attrs.frozen(slots=True)
class GasCost:
    """Gas that a mined transaction used. `fills`: the version that was mined carried no relay."""

    tx_id: int
    gas_used: int
    fills: bool


@attrs.frozen(slots=True)
class Booked:
    kind: str
    gas: int


async def book(connection: Connection, costs: Sequence[GasCost]) -> list[Booked]:
    """Book transactions that are recorded as mined to the signers of the relays they carry, each by its share of the
    estimates; those that are booked already are left as they are. Returns what was booked, by kind.

    Relays must still be bound to the transaction that carried them: before any of them goes back to the queue.
    """
    rows = await connection.fetch(
        "with used as (select u.* from unnest($1::bigint[], $2::bigint[], $3::boolean[]) as u(tx_id, gas, fills)"
        "  where not exists (select from gas_bookings b where b.tx_id = u.tx_id)),"
        " carried as (select u.tx_id, u.gas, coalesce(r.signer, ''::bytea) as signer, r.kind, r.newcomer,"
        "  greatest(r.gas_estimate, 1)::numeric as weight,"
        "  sum(greatest(r.gas_estimate, 1)) over (partition by u.tx_id order by r.id) as upto,"
        "  sum(greatest(r.gas_estimate, 1)) over (partition by u.tx_id) as whole"
        "  from used u join relays r on r.tx_id = u.tx_id where not u.fills),"
        # Shares are cut from one line, so that they sum to what was used, to the unit.
        " shares as (select tx_id, signer, kind, newcomer,"
        "  (div(gas * upto, whole) - div(gas * (upto - weight), whole))::bigint as gas from carried"
        "  union all select u.tx_id, ''::bytea, 'fill', false, u.gas from used u"
        "  where u.fills or not exists (select from relays r where r.tx_id = u.tx_id)),"
        " rows as (insert into gas_bookings (tx_id, signer, kind, newcomer, hour, gas)"
        "  select tx_id, signer, kind, newcomer, current_hour(), sum(gas) from shares"
        "  group by tx_id, signer, kind, newcomer returning signer, kind, newcomer, hour, gas),"
        f" added as ({_ADD.format(sign='', newcomers='$4::bytea')})"
        " select kind, sum(gas)::bigint as gas from rows group by kind",
        [cost.tx_id for cost in costs],
        [cost.gas_used for cost in costs],
        [cost.fills for cost in costs],
        ALL_NEWCOMERS,
    )
    return [Booked(row["kind"], row["gas"]) for row in rows]


async def unbook(connection: Connection, tx_ids: Sequence[int]) -> None:
    """Take back what was booked for transactions whose blocks are no part of the chain any more."""
    await connection.execute(
        "with rows as (delete from gas_bookings where tx_id = any($1::bigint[])"
        f" returning signer, kind, newcomer, hour, gas) {_ADD.format(sign='-', newcomers='$2::bytea')}",
        tx_ids,
        ALL_NEWCOMERS,
    )


async def drop_old(connection: Connection, relays_kept_seconds: int) -> None:
    """Drop sums that no budget looks at any more, and no reorganisation reaches: a day after the relays they are of."""
    days = max(KEPT_DAYS, relays_kept_seconds // 86_400 + 1)
    await remove_due(connection, "gas_spent", "hour < (select current_hour()) - $1 * 24", days)
