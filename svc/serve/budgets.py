"""Budgets of `svc serve`: limits per key, and for all keys together, on any hour and any day.

A budget counts the authorised amount from just before the post, and the cost once the job has ended, so that parallel
requests cannot overspend. Nothing here awaits, so the check and the reservation are one step.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from svc.core.money import Token
from svc.serve.ledger import SpendEntry
from svc.serve.problems import over_budget
from svc.serve.settings import ServeSettings

HOUR_SECONDS, DAY_SECONDS = 3_600.0, 86_400.0
DEFAULT_DAY_TOKENS: Final = 10


@attrs.define
class Limit:
    """Limit of `max_amount` base units in any `seconds`, for one key, or for all keys together."""

    key: str | None
    seconds: float
    max_amount: int
    description: str
    _entries: deque[tuple[float, str]] = attrs.field(factory=deque)
    _total: int = 0

    def total_spent(self, now: float, committed: dict[str, int]) -> int:
        while self._entries and self._entries[0][0] <= now - self.seconds:
            self._total -= committed.get(self._entries.popleft()[1], 0)
        return self._total

    def add(self, at: float, job_id: str, amount: int) -> None:
        self._entries.append((at, job_id))
        self._total += amount

    def change(self, at: float, now: float, by: int) -> None:
        """Change the amount of a job posted at `at`, unless it has left the window."""
        if at > now - self.seconds:
            self._total += by

    def drop(self, at: float, job_id: str, amount: int) -> None:
        if (at, job_id) in self._entries:
            self._entries.remove((at, job_id))
            self._total -= amount


class Budgets:
    """All limits, and the amounts of the last day's jobs."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._committed: dict[str, int] = {}
        self._posted: dict[str, tuple[float, str]] = {}

    @classmethod
    def of(cls, settings: ServeSettings, token: Token, total_spent: Iterable[SpendEntry]) -> "Budgets":
        """Create the budgets. `spent` holds the jobs of the last day and the running ones, oldest first."""
        budget = settings.budget
        day = budget.per_day
        if day is None:  # cap unverified decimals, which the coordinator could inflate
            decimals = token.decimals if token.vouched else min(token.decimals, 6)
            day = DEFAULT_DAY_TOKENS * 10**decimals
        configured: list[tuple[str | None, float, int | None, str]] = [
            (None, HOUR_SECONDS, budget.per_hour, "an hour, all keys together"),
            (None, DAY_SECONDS, day, "a day, all keys together"),
        ]
        for name, key in settings.keys.items():
            configured.append((name, HOUR_SECONDS, key.per_hour, f"an hour by key {name}"))
            configured.append((name, DAY_SECONDS, key.per_day, f"a day by key {name}"))
        budgets = cls(
            [
                Limit(key, seconds, max_amount, f"{token.format(max_amount)} {text}")
                for key, seconds, max_amount, text in configured
                if max_amount
            ]
        )
        for job in total_spent:
            budgets.record(job.key, job.job_id, job.amount if job.cost is None else job.cost, job.at)
        return budgets

    @property
    def descriptions(self) -> list[str]:
        return [limit.description for limit in self._limits]

    def reserve(self, key: str, job_id: str, amount: int, now: float) -> None:
        """Reserve an amount. A repeated job, such as a retried batch, replaces its earlier reservation.

        Raises Problem (`insufficient_quota`), with nothing reserved, if a limit would be exceeded.
        """
        self._forget(now)
        self._drop(job_id)
        for limit in self._of(key):
            left = limit.max_amount - limit.total_spent(now, self._committed)
            if amount > left:
                raise over_budget(
                    f"the request needs {amount} base units, but {max(0, left)} are left of {limit.description}"
                )
        self.record(key, job_id, amount, now)

    def record(self, key: str, job_id: str, amount: int, at: float) -> None:
        self._drop(job_id)
        self._committed[job_id] = amount
        self._posted[job_id] = (at, key)
        for limit in self._of(key):
            limit.add(at, job_id, amount)

    def settle(self, job_id: str, cost: int, now: float) -> None:
        """Replace the authorised amount with the cost, once the job has ended."""
        known = self._committed.get(job_id)
        if known is None:
            return
        at, key = self._posted[job_id]
        for limit in self._of(key):
            limit.total_spent(now, self._committed)  # expire entries before the amount changes
            limit.change(at, now, cost - known)
        self._committed[job_id] = cost

    def _drop(self, job_id: str) -> None:
        """Remove a job. A job with two entries would be subtracted twice when it leaves the window."""
        if (known := self._posted.pop(job_id, None)) is None:
            return
        (at, key), amount = known, self._committed.pop(job_id)
        for limit in self._of(key):
            limit.drop(at, job_id, amount)

    def _of(self, key: str) -> list[Limit]:
        return [limit for limit in self._limits if limit.key is None or limit.key == key]

    def _forget(self, now: float) -> None:
        """Remove jobs that have left every window."""
        for limit in self._limits:
            limit.total_spent(now, self._committed)
        while self._posted:
            job_id, (at, _) = next(iter(self._posted.items()))
            if at > now - DAY_SECONDS:
                return
            del self._posted[job_id], self._committed[job_id]
