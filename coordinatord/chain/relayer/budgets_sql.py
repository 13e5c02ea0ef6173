"""The gas ledger and the budgets in the database.

The gas that a mined transaction used is booked once, by signer and kind, in the database transaction that records how
its relays ended. A reorg that removes a transaction's block removes its bookings. Budgets sum the bookings of a day and
the estimates of relays under way. Settled jobs raise the limits of the budgets.
"""

import enum
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import attrs

from common.api.states import JobState
from coordinatord.chain.relayer.transactions_sql import MinedTx
from coordinatord.storage.database.columns import to_columns
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection

# A settled job raises limits for this many days after its claim.
EARNING_PERIOD_DAYS: Final = 7
# Limit of counted settled jobs per signer.
MAX_COUNTED_JOBS: Final = 20_000
# Placeholder for a signer in the rows that sum up the gas of all newcomers.
ALL_NEWCOMERS: Final = b"\x00"
# Amount that the claim of a job collects.
_CLAIM_AMOUNT_SQL: Final = "j.cap + div(j.cap * j.fee_bps, 10000) + j.gas_fee"
_SPENT_GAS_COLUMNS: Final = (
    "coalesce(sum(gas) filter (where hour = (select current_hour())), 0)::bigint as last_hour,"
    " sum(gas)::bigint as last_day from gas_bookings"
)


class Budget(enum.StrEnum):
    """Budget that an op of a signer counts towards. Owners have posts and cancels, providers work and upkeep."""

    POSTS = "posts"
    CANCELS = "cancels"
    # Claims, settles and fails together. When this budget is exhausted, only claims are refused.
    WORK = "work"
    # Identity, capacity and asks.
    UPKEEP = "upkeep"
    # All newcomers together.
    NEWCOMERS = "newcomers"


@attrs.frozen(slots=True)
class GasLimits:
    """Gas that a signer may spend per hour and per day. For a newcomer, `newcomers_gas` are the limits per hour and per
    day that all newcomers share."""

    budget: Budget
    hourly_gas: int | None
    daily_gas: int | None
    newcomers_gas: "tuple[int, int] | None" = None


@attrs.frozen(slots=True)
class Spender:
    """Signer, with the budget that its op counts towards."""

    signer: bytes
    budget: Budget


@attrs.frozen(slots=True)
class Standing:
    """Settled jobs of a signer, and amounts that the signer's posts promise. `settled_jobs` counts the settled jobs of
    the last week. `is_listed` is True for a listed provider. `open_amounts` is the sum that claims of the owner's open
    jobs will collect, as of the block `block_number`. `unindexed_amounts` is the same sum for posts that were not
    indexed at that block."""

    settled_jobs: int
    is_listed: bool
    block_number: int
    open_amounts: int
    unindexed_amounts: int


async def read_standings(
    reader: "PreparedConnection | Connection", spenders: Sequence[Spender]
) -> dict[Spender, Standing]:
    rows = await reader.fetch(
        "select a.place, (o.settled + v.settled) as settled, v.listed, coalesce(p.block_number, -1) as position,"
        " o.amounts::text as amounts, o.unindexed::text as unindexed"
        " from unnest($1::bytea[], $2::boolean[]) with ordinality as a(signer, owns, place)"
        " left join index_position p on true"
        " cross join lateral (select"
        "  (select count(*) from (select from jobs j"
        f"   where a.owns and j.owner = a.signer and j.state = {JobState.SETTLED}"
        "   and j.claimed_at > p.block_time - $3::bigint * 86400 limit $4) s) as settled,"
        f"  (select coalesce(sum({_CLAIM_AMOUNT_SQL}), 0) from jobs j"
        f"   where a.owns and j.owner = a.signer and j.state = {JobState.OPEN}"
        "   and j.expires_at >= p.block_time) as amounts,"
        "  case when a.owns then unindexed_posts(a.signer, coalesce(p.block_number, -1)) else 0 end as unindexed) o"
        " cross join lateral (select coalesce(max((select count(*) from (select from jobs j"
        f"   where j.provider_id = v.provider_id and j.state = {JobState.SETTLED}"
        "   and j.claimed_at > p.block_time - $3::bigint * 86400 limit $4) s)), 0) as settled,"
        "  coalesce(bool_or(v.listed), false) as listed"
        "  from providers v where not a.owns and v.operator = a.signer) v",
        [spender.signer for spender in spenders],
        [spender.budget in (Budget.POSTS, Budget.CANCELS) for spender in spenders],
        EARNING_PERIOD_DAYS,
        MAX_COUNTED_JOBS,
    )
    return {
        spenders[row["place"] - 1]: Standing(
            row["settled"], row["listed"], row["position"], int(Decimal(row["amounts"])), int(Decimal(row["unindexed"]))
        )
        for row in rows
    }


@attrs.frozen(slots=True)
class Spending:
    """Gas that a signer's op may use, and the signer's limits."""

    signer: bytes
    gas_estimate: int
    gas_limits: GasLimits


async def read_exhausted_budgets(
    reader: PreparedConnection, spendings: Sequence[Spending]
) -> dict[Spending, Budget | None]:
    """Return, for each spending, the budget that has no room for the estimate: the signer's budget, or the budget of
    all newcomers, or None if both have room."""
    rows = await reader.fetch(
        "select a.place, a.day is null or gas_fits(a.signer, a.budget, a.estimate, a.hour, a.day) as own_fits,"
        " a.all_day is null or gas_fits('', 'newcomers', a.estimate, a.all_hour, a.all_day) as newcomers_fit"
        " from unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])"
        " with ordinality as a(signer, budget, estimate, hour, day, all_hour, all_day, place)",
        [spending.signer for spending in spendings],
        [spending.gas_limits.budget.value for spending in spendings],
        [spending.gas_estimate for spending in spendings],
        [spending.gas_limits.hourly_gas for spending in spendings],
        [spending.gas_limits.daily_gas for spending in spendings],
        [spending.gas_limits.newcomers_gas[0] if spending.gas_limits.newcomers_gas else None for spending in spendings],
        [spending.gas_limits.newcomers_gas[1] if spending.gas_limits.newcomers_gas else None for spending in spendings],
    )
    exhausted: dict[Spending, Budget | None] = {}
    for row in rows:
        spending = spendings[row["place"] - 1]
        others = None if row["newcomers_fit"] else Budget.NEWCOMERS
        exhausted[spending] = others if row["own_fits"] else spending.gas_limits.budget
    return exhausted


async def count_fitting_ops(connection: Connection, spending: Spending, limit: int) -> int:
    """Return how many ops of this estimate fit now, at most `limit`. The first op of an hour and of a day always fits,
    as in `gas_fits`."""
    limits, estimate = spending.gas_limits, spending.gas_estimate
    fitting = limit
    pools: list[tuple[bytes, Budget, int | None, int | None]] = [
        (spending.signer, limits.budget, limits.hourly_gas, limits.daily_gas)
    ]
    if limits.newcomers_gas is not None:
        pools.append((ALL_NEWCOMERS, Budget.NEWCOMERS, *limits.newcomers_gas))
    for signer, budget, hour, day in pools:
        if hour is None or day is None:
            continue
        row = await connection.fetchrow("select in_hour, in_day from gas_used($1, $2)", signer, budget.value)
        in_hour, in_day = row["in_hour"], row["in_day"]
        fits_hour = max((hour - in_hour) // estimate, 1 if in_hour == 0 else 0)
        fits_day = max((day - in_day) // estimate, 1 if in_day == 0 else 0)
        fitting = max(min(fitting, fits_hour, fits_day), 0)
    return fitting


async def book_gas(connection: Connection, mined: Sequence[MinedTx]) -> dict[str, int]:
    """Book the gas of mined transactions to the signers of their relays, in proportion to the estimates, unless the gas
    is booked already. Return the booked gas by kind. Call this before any relay goes back to the queue: a requeued
    relay is no longer bound to its transaction."""
    rows = await connection.fetch(
        "with used as (select u.* from unnest($1::bigint[], $2::bigint[], $3::boolean[]) as u(tx_id, gas, fills)"
        "  where not exists (select from gas_bookings b where b.tx_id = u.tx_id)),"
        " carried as (select u.tx_id, u.gas, coalesce(r.signer, ''::bytea) as signer, r.kind, r.newcomer,"
        "  greatest(r.gas_estimate, 1)::numeric as weight,"
        "  sum(greatest(r.gas_estimate, 1)) over (partition by u.tx_id order by r.id) as upto,"
        "  sum(greatest(r.gas_estimate, 1)) over (partition by u.tx_id) as whole"
        "  from used u join relays r on r.tx_id = u.tx_id where not u.fills),"
        # Shares are differences of running sums, so they add up exactly to the gas used.
        " shares as (select tx_id, signer, kind, newcomer,"
        "  (div(gas * upto, whole) - div(gas * (upto - weight), whole))::bigint as gas from carried"
        "  union all select u.tx_id, ''::bytea, 'fill', false, u.gas from used u"
        "  where u.fills or not exists (select from relays r where r.tx_id = u.tx_id)),"
        " rows as (insert into gas_bookings (tx_id, signer, kind, newcomer, hour, gas)"
        "  select tx_id, signer, kind, newcomer, current_hour(), sum(gas) from shares"
        "  group by tx_id, signer, kind, newcomer returning kind, gas)"
        " select kind, sum(gas)::bigint as gas from rows group by kind",
        *to_columns(mined, "tx_id", "gas_used", "is_self_transfer"),
    )
    return {row["kind"]: row["gas"] for row in rows}


async def remove_bookings(connection: Connection, tx_ids: Sequence[int]) -> None:
    """Remove the bookings of transactions in blocks that are no longer part of the chain."""
    await connection.execute("delete from gas_bookings where tx_id = any($1::bigint[])", tx_ids)


@attrs.frozen(slots=True)
class TopSpender:
    """Gas that a signer used for ops of one kind."""

    signer: bytes
    kind: str
    last_hour_gas: int
    last_day_gas: int


async def read_top_spenders(connection: Connection, limit: int) -> list[TopSpender]:
    """Return the signers that used the most gas in the last day, one entry per signer and kind. The coordinator itself
    and the sum of all newcomers count as signers."""
    rows = await connection.fetch(
        f"select signer, kind, {_SPENT_GAS_COLUMNS} where newcomer = any(array[true, false])"
        " and hour > (select current_hour()) - 24 group by signer, kind order by last_day desc, signer, kind limit $1",
        limit,
    )
    rows += await connection.fetch(
        f"select $1::bytea, kind, {_SPENT_GAS_COLUMNS} where newcomer"
        " and hour > (select current_hour()) - 24 group by kind",
        ALL_NEWCOMERS,
    )
    spenders = [TopSpender(*row) for row in rows]
    return sorted(spenders, key=lambda spender: (-spender.last_day_gas, spender.signer, spender.kind))[:limit]
