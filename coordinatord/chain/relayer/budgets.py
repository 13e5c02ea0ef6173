"""Gas budgets: how much of the relayer's gas a signer may cause. Checked before anything is stored or simulated.

A signer has a daily base, and more for each of its jobs of the last week that settled, because settled jobs paid their
gas fee. Half of the base (a setting) may be used in one hour. Wallets are free to create, so a wallet with fewer than
NEWCOMER_JOBS settled jobs also counts towards a ceiling of all newcomers together. An owner's base then grows with its
settled jobs. Gas of mined transactions is booked, and relays under way count by estimate. This module refuses requests
early, and `submit_relays` decides under the outbox's lock.
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

# A wallet with this many settled jobs in the last week is not a newcomer.
NEWCOMER_JOBS: Final = 10
# An owner with this many settled jobs has its whole base.
FULL_BASE_JOBS: Final = 40
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
    """Gas per day of one signer. 0 means no limit. `per_settled` is added for each job of the last week that
    settled. `newcomers` is for all newcomers together. `hourly_percent` is the share of a day's base available in
    one hour."""

    posts: int
    work: int
    upkeep: int
    unlisted_upkeep: int
    newcomers: int
    per_settled: int
    hourly_percent: int = 50

    @classmethod
    def of(cls, wallet_gas: int, newcomers_gas: int) -> "GasPolicy":
        """Return a policy in proportion to the daily gas of one wallet's posts. A provider sends more ops than a
        client."""

        def share(percent: float) -> int:
            return max(1, int(wallet_gas * percent / 100)) if wallet_gas else 0

        return cls(
            posts=wallet_gas,
            work=share(300),
            upkeep=share(250),
            unlisted_upkeep=share(10),
            newcomers=newcomers_gas,
            per_settled=share(2.5),
        )

    def limits(self, budget: Budget, standing: Standing) -> GasLimits:
        earned = self.per_settled * standing.settled
        is_new = standing.settled < NEWCOMER_JOBS and not standing.listed and budget is not Budget.WORK
        newcomers = (self._hourly(self.newcomers), self.newcomers) if is_new and self.newcomers else None
        match budget:
            case Budget.POSTS:
                base = self.posts
            # A cancel takes a third of its post's gas.
            case Budget.CANCELS:
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
    """Request that fits its signer's budget, with the figures that `submit_relays` checks it against."""

    spending: Spending
    standing: Standing


class GasBudgets:
    def __init__(self, database: Database, policy: GasPolicy) -> None:
        self._database = database
        self.policy = policy
        self._standings = BatchedReads[Spender, Standing](database.prepared_connection(), read_standings)
        self._exhausted = BatchedReads[Spending, Budget | None](database.prepared_connection(), read_exhausted)

    async def admit(self, kind: RelayKind, signer: bytes, subject: bytes, calldata_bytes: int = 0) -> Admitted:
        """Raise Retryable `busy` for a request over a budget, unless a relay of its subject is under way, which the
        request may join."""
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
        f"the gas budget for {_WHAT[budget]} is used up; it grows with every settled job, and used gas counts for a day"
    )
    return Retryable("busy", message, retry_after=_HOUR_S - int(time.time()) % _HOUR_S)
