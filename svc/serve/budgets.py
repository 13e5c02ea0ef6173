"""Budgets of `svc serve`: what each key and all of them may spend in any hour and any day.

A budget counts what is authorised from the moment before a job is posted, and what it cost from the moment it ended:
requests at the same time cannot overspend together. Nothing here waits, so that check and reservation are one step.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from svc.core.money import Token
from svc.serve.ledger import Spent
from svc.serve.problems import over_budget
from svc.serve.settings import ServeSettings

HOUR, DAY = 3_600.0, 86_400.0
DEFAULT_DAY: Final = 10  # whole tokens, where nothing is said


@attrs.define
class Limit:
    """`most` base units in any `seconds`. `key`: whose spending counts; None for everybody's."""

    key: str | None
    seconds: float
    most: int
    words: str
    _entries: deque[tuple[float, str]] = attrs.field(factory=deque)
    _total: int = 0

    def spent(self, now: float, committed: dict[str, int]) -> int:
        while self._entries and self._entries[0][0] <= now - self.seconds:
            self._total -= committed.get(self._entries.popleft()[1], 0)
        return self._total

    def add(self, at: float, job_id: str, amount: int) -> None:
        self._entries.append((at, job_id))
        self._total += amount

    def change(self, at: float, now: float, by: int) -> None:
        """For a job that was posted at `at`, unless it has left the window."""
        if at > now - self.seconds:
            self._total += by

    def drop(self, at: float, job_id: str, amount: int) -> None:
        if (at, job_id) in self._entries:
            self._entries.remove((at, job_id))
            self._total -= amount


class Budgets:
    """Every limit, and what each job of the last day takes of them."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._limits = limits
        self._committed: dict[str, int] = {}
        self._posted: dict[str, tuple[float, str]] = {}

    @classmethod
    def of(cls, settings: ServeSettings, token: Token, spent: Iterable[Spent]) -> "Budgets":
        """`spent`: the jobs of the last day and those under way, the oldest first."""
        budget = settings.budget
        day = budget.per_day
        if day is None:  # decimals that only the coordinator tells are not believed beyond the usual ones
            decimals = token.decimals if token.vouched else min(token.decimals, 6)
            day = DEFAULT_DAY * 10**decimals
        told: list[tuple[str | None, float, int | None, str]] = [
            (None, HOUR, budget.per_hour, "an hour, all keys together"),
            (None, DAY, day, "a day, all keys together"),
        ]
        for name, key in settings.keys.items():
            told.append((name, HOUR, key.per_hour, f"an hour by key {name}"))
            told.append((name, DAY, key.per_day, f"a day by key {name}"))
        budgets = cls([Limit(key, seconds, most, f"{token.told(most)} {w}") for key, seconds, most, w in told if most])
        for job in spent:
            budgets.record(job.key, job.job_id, job.amount if job.cost is None else job.cost, job.at)
        return budgets

    @property
    def words(self) -> list[str]:
        return [limit.words for limit in self._limits]

    def reserve(self, key: str, job_id: str, amount: int, now: float) -> None:
        """Raises Problem (`insufficient_quota`), with nothing reserved, where a limit would be passed. A reservation
        that the same job had before, as a batch that is posted again has, counts no more."""
        self._forget(now)
        self._drop(job_id)
        for limit in self._of(key):
            left = limit.most - limit.spent(now, self._committed)
            if amount > left:
                raise over_budget(f"it comes to {amount} base units, and {max(0, left)} are left of {limit.words}")
        self.record(key, job_id, amount, now)

    def record(self, key: str, job_id: str, amount: int, at: float) -> None:
        self._drop(job_id)
        self._committed[job_id] = amount
        self._posted[job_id] = (at, key)
        for limit in self._of(key):
            limit.add(at, job_id, amount)

    def settle(self, job_id: str, cost: int, now: float) -> None:
        """What a job cost, once it has ended: what was authorised beyond it is free again."""
        known = self._committed.get(job_id)
        if known is None:
            return
        at, key = self._posted[job_id]
        for limit in self._of(key):
            limit.spent(now, self._committed)  # by the old amount, before it changes
            limit.change(at, now, cost - known)
        self._committed[job_id] = cost

    def _drop(self, job_id: str) -> None:
        """Each job counts once: a second entry would take its amount from the sum twice when it leaves the window."""
        if (known := self._posted.pop(job_id, None)) is None:
            return
        (at, key), amount = known, self._committed.pop(job_id)
        for limit in self._of(key):
            limit.drop(at, job_id, amount)

    def _of(self, key: str) -> list[Limit]:
        return [limit for limit in self._limits if limit.key is None or limit.key == key]

    def _forget(self, now: float) -> None:
        """Jobs that have left every window."""
        for limit in self._limits:
            limit.spent(now, self._committed)
        while self._posted:
            job_id, (at, _) = next(iter(self._posted.items()))
            if at > now - DAY:
                return
            del self._posted[job_id], self._committed[job_id]
