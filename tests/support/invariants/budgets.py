"""I12: the gas, bytes and rows that a wallet causes stay within its budget.

violations = await budget_violations(connection, config)
assert violations == []
"""

from typing import Any, Final

import asyncpg

from common.scalars import hex_of
from coordinatord.chain.relayer.budgets_sql import Budget, Standing
from coordinatord.run.config import Config
from coordinatord.run.constructors import gas_policy, storage_budgets

# Gas as booked per transaction, not the running sums that budgets are compared with. A provider's settles and fails are
# left out because they are never rejected.
_SPENT: Final = (
    "select b.signer, g.budget, sum(b.gas)::bigint as gas, max(b.gas) as largest from gas_bookings b join"
    " (values ('post', 'posts'), ('cancel', 'cancels'), ('claim', 'work'), ('set_identity', 'upkeep'),"
    "  ('request_capacity', 'upkeep'), ('publish', 'upkeep')) as g (kind, budget) on g.kind = b.kind"
    " where b.signer <> '' and b.hour > current_hour() - 24 group by 1, 2"
)
_NEWCOMERS: Final = (
    "select sum(gas)::bigint as gas, max(gas) as largest from gas_bookings"
    " where newcomer and hour > current_hour() - 24"
)
_EARNED: Final = (
    "select (select count(*) from jobs where owner = $1 and state = 2) + (select count(*) from jobs j join providers v"
    " using (provider_id) where v.operator = $1 and j.state = 2) as settled,"
    " coalesce((select bool_or(listed) from providers where operator = $1), false) as listed"
)
# Files that batches produce and content that providers settle are left out because they are never rejected.
_STORED: Final = (
    "select o.owner, sum(o.bytes)::bigint as bytes, sum(o.rows)::bigint as rows, has_earned(o.owner) as earned from ("
    " select owner, bytes, 1 as rows from files where purpose <> 'batch_output'"
    " union all select owner, bytes, 1 from objects where key like 'containers/%' and owner <> ''"
    " union all select owner, octet_length(metadata::text), 1 + lines from batches) o group by o.owner"
)


async def budget_violations(
    connection: "asyncpg.Connection[asyncpg.Record]", config: Config, *, mined_again: int = 0
) -> list[str]:
    """Return each violation as a sentence.

    `mined_again`: ops of one signer that a reorg or a race may have charged twice. They count at the cost of the
    signer's largest op.
    """
    found = []
    policy = gas_policy(config)
    for row in await connection.fetch(_SPENT):
        limits = policy.limits_for(Budget(row["budget"]), await _standing(connection, row["signer"]))
        if limits.daily_gas is not None and row["gas"] > limits.daily_gas + mined_again * row["largest"]:
            found.append(
                f"I12: {hex_of(row['signer'])} caused {row['gas']} gas of {row['budget']}, and may cause"
                f" {limits.daily_gas}"
            )
    together = await connection.fetchrow(_NEWCOMERS)
    gas, largest = (together["gas"] or 0, together["largest"] or 0) if together is not None else (0, 0)
    if policy.newcomers_daily_gas and gas > policy.newcomers_daily_gas + mined_again * largest:
        found.append(f"I12: newcomers caused {gas} gas, and may cause {policy.newcomers_daily_gas}")
    return found + [line for row in await connection.fetch(_STORED) for line in _too_much_stored(row, config)]


async def _standing(connection: "asyncpg.Connection[asyncpg.Record]", signer: bytes) -> Standing:
    row = await connection.fetchrow(_EARNED, signer)
    assert row is not None
    return Standing(
        settled_jobs=row["settled"], is_listed=row["listed"], block_number=0, open_amounts=0, unindexed_amounts=0
    )


def _too_much_stored(row: Any, config: Config) -> list[str]:
    budgets = storage_budgets(config)
    most = (
        (budgets.max_earner_bytes, budgets.max_earner_rows)
        if row["earned"]
        else (budgets.max_newcomer_bytes, budgets.max_newcomer_rows)
    )
    return [
        f"I12: {row[what]} {what} are kept for {hex_of(row['owner'])}, and {limit} may be"
        for what, limit in zip(("bytes", "rows"), most, strict=True)
        if limit and row[what] > limit
    ]
