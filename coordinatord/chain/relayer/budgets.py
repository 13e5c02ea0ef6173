"""Gas budgets: how much of the relayer's gas a signer may cause. Checked before anything is stored or simulated.

A signer has a base a day, and more for each job of the last week that settled, whose gas fee was paid. Half of the base
(a setting) may be used in one hour. New wallets cost nothing, so a wallet with fewer than NEWCOMER_JOBS settled jobs
also counts towards a ceiling of all newcomers together. Beyond that, an owner's base grows with its settled jobs. Gas
that mined transactions used is booked; relays under way count by estimate. This module refuses requests early, and
`submit_relays` decides under the outbox's lock.
"""

import time
from typing import Final

import attrs

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.budgets_sql import (
    Budget,
    GasLimits,
    Spender,
    Spending,
    Standing,
    read_exhausted,
    read_standings,
)
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database

NEWCOMER_JOBS: Final = 10  # settled jobs of the last week with which a wallet is no newcomer any more
FULL_BASE_JOBS: Final = 40  # settled jobs with which an owner has its whole base
_HOUR_S: Final = 3600
_BUDGET_OF: Final = {
    RelayKind.POST: Budget.POSTS,
    RelayKind.CANCEL: Budget.CANCELS,
    RelayKind.CLAIM: Budget.WORK,
    RelayKind.SET_IDENTITY: Budget.UPKEEP,
    RelayKind.REQUEST_CAPACITY: Budget.UPKEEP,
    RelayKind.PUBLISH: Budget.UPKEEP,
}
_WHAT: Final = {
    Budget.POSTS: "posts",
    Budget.CANCELS: "cancels",
    Budget.WORK: "claims, settles and fails",
    Budget.UPKEEP: "identities, capacity requests and asks",
    Budget.NEWCOMERS: f"all wallets together that have fewer than {NEWCOMER_JOBS} settled jobs",
}


@attrs.frozen(slots=True, kw_only=True)
class GasPolicy:
    """Gas a day of one signer; 0 sets no limit. `per_settled` is added for each job of the last week that settled;
    `newcomers` is for all newcomers together. `hourly_percent`: of a day's base, in one hour."""

    posts: int
    work: int
    upkeep: int
    unlisted_upkeep: int
    newcomers: int
    per_settled: int
    hourly_percent: int

    def limits(self, budget: Budget, standing: Standing) -> GasLimits:
        earned = self.per_settled * standing.settled
        is_new = standing.settled < NEWCOMER_JOBS and not standing.listed and budget is not Budget.WORK
        newcomers = (self._hourly(self.newcomers), self.newcomers) if is_new and self.newcomers else None
        match budget:
            case Budget.POSTS:
                base = self.posts
            case Budget.CANCELS:  # a cancel takes a third of what its post took
                base, earned = self.posts // 2, earned // 2
            case Budget.WORK:
                base = self.work
            case _:
                base, earned = (self.upkeep if standing.listed else self.unlisted_upkeep), 0
        if base == 0:
            return GasLimits(budget, None, None, newcomers)
        if not is_new and budget in (Budget.POSTS, Budget.CANCELS):
            base = base * min(standing.settled, FULL_BASE_JOBS) // FULL_BASE_JOBS
        return GasLimits(budget, self._hourly(base) + earned, base + earned, newcomers)

    def _hourly(self, base: int) -> int:
        return base * self.hourly_percent // 100


@attrs.frozen(slots=True)
class Admitted:
    """A request that its signer's budget has room for, with what `submit_relays` checks it against."""

    spending: Spending
    standing: Standing


class GasBudgets:
    def __init__(self, database: Database, policy: GasPolicy) -> None:
        self._database = database
        self.policy = policy
        self._standings = BatchedReads[Spender, Standing](database.prepared_connection(), read_standings)
        self._exhausted = BatchedReads[Spending, Budget | None](database.prepared_connection(), read_exhausted)

    async def admit(self, kind: RelayKind, signer: bytes, subject: bytes, calldata_bytes: int = 0) -> Admitted:
        """Raise Retryable `busy` for a request that is over a budget, unless a relay of its subject is under way: it
        may be the same request, which joins that relay."""
        budget = _BUDGET_OF[kind]
        standing = await self._standings.get(Spender(signer, budget))
        spending = Spending(signer, gas_estimate(kind, calldata_bytes), self.policy.limits(budget, standing))
        if spending.limits.day is not None or spending.limits.newcomers is not None:
            exhausted = await self._exhausted.get(spending)
            if exhausted is not None and not await self.is_under_way(subject):
                raise over_budget(exhausted)
        return Admitted(spending, standing)

    async def is_under_way(self, subject: bytes) -> bool:
        async with self._database.connection() as connection:
            return await outbox_sql.is_under_way(connection, subject)


def over_budget(budget: Budget) -> Retryable:
    """Return the refusal. Budgets count by clock hours, so the next full hour may have room."""
    metrics.budget_refusals.labels(budget.value).inc()
    message = (
        f"the gas budget for {_WHAT[budget]} is used up; it grows with every job that settles,"
        " and what was spent counts for a day"
    )
    return Retryable("busy", message, retry_after=_HOUR_S - int(time.time()) % _HOUR_S)
