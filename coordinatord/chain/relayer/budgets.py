"""Gas budgets: limits on the relayer's gas that the ops of a signer may use, checked before an op is stored or
simulated.

A signer may use a daily base of gas, and more for each of its jobs of the last week that settled, because settled jobs
paid their gas fee. Wallets are free to create, so a wallet with fewer than MIN_ESTABLISHED_JOBS settled jobs also
counts towards one ceiling of all newcomers. From that number on, an owner's base grows with the owner's settled jobs,
up to MIN_JOBS_FOR_FULL_BASE. This module refuses requests early, and `submit_relays` decides under the outbox's lock.
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
    read_exhausted_budgets,
    read_standings,
)
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Database

# A wallet with this many settled jobs in the last week is not a newcomer.
MIN_ESTABLISHED_JOBS: Final = 10
# The daily gas for posts and cancels grows with an owner's settled jobs of the last week, up to this many jobs.
MIN_JOBS_FOR_FULL_BASE: Final = 40
_HOUR_S: Final = 3600
_BUDGET_OF_KIND: Final = {
    RelayKind.POST: Budget.POSTS,
    RelayKind.CANCEL: Budget.CANCELS,
    RelayKind.CLAIM: Budget.WORK,
    RelayKind.SET_IDENTITY: Budget.UPKEEP,
    RelayKind.REQUEST_CAPACITY: Budget.UPKEEP,
    RelayKind.PUBLISH: Budget.UPKEEP,
}
_BUDGET_NAMES: Final = {
    Budget.POSTS: "posts",
    Budget.CANCELS: "cancels",
    Budget.WORK: "claims, settles and fails",
    Budget.UPKEEP: "identities, capacity requests and asks",
    Budget.NEWCOMERS: f"all wallets together that have fewer than {MIN_ESTABLISHED_JOBS} settled jobs",
}


@attrs.frozen(slots=True, kw_only=True)
class GasPolicy:
    """Daily gas of one signer for each kind of op. 0 means no limit.

    `daily_gas_per_settled_job` is added for each job of the last week that settled. `newcomers_daily_gas` is for all
    newcomers together. `hourly_percent` is the share of the daily gas, without this addition, available in one hour.
    """

    posts_daily_gas: int
    work_daily_gas: int
    upkeep_daily_gas: int
    unlisted_upkeep_daily_gas: int
    newcomers_daily_gas: int
    daily_gas_per_settled_job: int
    hourly_percent: int = 50

    @classmethod
    def from_daily_gas(cls, wallet_gas: int, newcomers_gas: int) -> "GasPolicy":
        """Return a policy in proportion to the daily gas of one wallet's posts. Providers get more than clients,
        because providers send more ops."""

        def share(percent: float) -> int:
            return max(1, int(wallet_gas * percent / 100)) if wallet_gas else 0

        return cls(
            posts_daily_gas=wallet_gas,
            work_daily_gas=share(300),
            upkeep_daily_gas=share(250),
            unlisted_upkeep_daily_gas=share(10),
            newcomers_daily_gas=newcomers_gas,
            daily_gas_per_settled_job=share(2.5),
        )

    def limits_for(self, budget: Budget, standing: Standing) -> GasLimits:
        earned = self.daily_gas_per_settled_job * standing.settled_jobs
        is_new = standing.settled_jobs < MIN_ESTABLISHED_JOBS and (
            budget in (Budget.POSTS, Budget.CANCELS) or (budget is Budget.UPKEEP and not standing.is_listed)
        )
        newcomers = (
            (self._hourly_limit(self.newcomers_daily_gas), self.newcomers_daily_gas)
            if is_new and self.newcomers_daily_gas
            else None
        )
        match budget:
            case Budget.POSTS:
                base = self.posts_daily_gas
            # A cancel takes a third of its post's gas, so half of the gas for posts is enough to cancel every post.
            case Budget.CANCELS:
                base, earned = self.posts_daily_gas // 2, earned // 2
            case Budget.WORK:
                base = self.work_daily_gas
            case _:
                base, earned = (self.upkeep_daily_gas if standing.is_listed else self.unlisted_upkeep_daily_gas), 0
        if base == 0:
            return GasLimits(budget, None, None, newcomers)
        if not is_new and budget in (Budget.POSTS, Budget.CANCELS):
            base = base * min(standing.settled_jobs, MIN_JOBS_FOR_FULL_BASE) // MIN_JOBS_FOR_FULL_BASE
        return GasLimits(budget, self._hourly_limit(base) + earned, base + earned, newcomers)

    def _hourly_limit(self, base: int) -> int:
        return base * self.hourly_percent // 100


@attrs.frozen(slots=True)
class AdmittedRequest:
    """Request that fits its signer's budget, with the figures that `submit_relays` checks again."""

    spending: Spending
    standing: Standing


class GasBudgets:
    def __init__(self, database: Database, policy: GasPolicy) -> None:
        self._database = database
        self.policy = policy
        self._standings = BatchedReads[Spender, Standing](database.prepared_connection(), read_standings)
        self._exhausted = BatchedReads[Spending, Budget | None](database.prepared_connection(), read_exhausted_budgets)

    async def admit(self, kind: RelayKind, signer: bytes, subject: bytes, calldata_bytes: int = 0) -> AdmittedRequest:
        """Return the request's gas and its signer's limits. Raise Retryable `busy` for a request over a budget, unless
        a relay of its subject is under way, which the request may join."""
        budget = _BUDGET_OF_KIND[kind]
        standing = await self._standings.get(Spender(signer, budget))
        spending = Spending(signer, gas_estimate(kind, calldata_bytes), self.policy.limits_for(budget, standing))
        if spending.gas_limits.daily_gas is not None or spending.gas_limits.newcomers_gas is not None:
            exhausted = await self._exhausted.get(spending)
            if exhausted is not None and not await self.is_under_way(subject):
                raise over_budget_error(exhausted)
        return AdmittedRequest(spending, standing)

    async def is_under_way(self, subject: bytes) -> bool:
        async with self._database.connection() as connection:
            return await outbox_sql.is_under_way(connection, subject)


def over_budget_error(budget: Budget) -> Retryable:
    """Return the refusal, with the time until the next full hour. Budgets count by clock hours, so the next hour may
    have room."""
    metrics.budget_refusals.labels(budget.value).inc()
    message = (
        f"the gas budget for {_BUDGET_NAMES[budget]} is used up; "
        "the budget grows with every settled job, and used gas counts for a day"
    )
    return Retryable("busy", message, retry_after=_HOUR_S - int(time.time()) % _HOUR_S)
