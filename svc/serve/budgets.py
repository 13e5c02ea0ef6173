"""Budgets of `svc serve`: limits per hour and per day, for each key and for all keys together.

A budget counts the authorised amount from just before the post, and the cost once the job has ended, so that parallel
requests cannot overspend. No method awaits, so no other task runs between the check and the reservation.

The provider of a tab can charge the tab's whole amount until the settle, so the whole amount stays reserved. The amount
of a request in the tab is moved from the tab's key to the request's key.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from svc.core.money import Token
from svc.serve.ledger import TAB_KIND, SpendEntry
from svc.serve.problems import budget_problem
from svc.serve.request_ids import split_tab_request_id
from svc.serve.settings import ServeSettings

HOUR_S, DAY_S = 3_600.0, 86_400.0
DEFAULT_TOKENS_PER_DAY: Final = 10


@attrs.define
class SpendingLimit:
    """Limit of `max_amount` base units in any window of `period_s`, for one key, or for all keys if `key` is None."""

    key: str | None
    period_s: float
    max_amount: int
    description: str
    _entries: deque[tuple[float, str]] = attrs.field(factory=deque)
    _used_amount: int = 0

    def used_amount(self, now: float, amount_by_job: dict[str, int]) -> int:
        """Remove jobs that have left the window. Return the spent and reserved amount of the remaining jobs."""
        while self._entries and self._entries[0][0] <= now - self.period_s:
            self._used_amount -= amount_by_job.get(self._entries.popleft()[1], 0)
        return self._used_amount

    def add_job(self, posted_at: float, job_id: str, amount: int) -> None:
        self._entries.append((posted_at, job_id))
        self._used_amount += amount

    def change_job_amount(self, posted_at: float, now: float, difference: int) -> None:
        """Add `difference` to the amount of a job posted at `posted_at`, unless the job has left the window."""
        if posted_at > now - self.period_s:
            self._used_amount += difference

    def remove_job(self, posted_at: float, job_id: str, amount: int) -> None:
        if (posted_at, job_id) in self._entries:
            self._entries.remove((posted_at, job_id))
            self._used_amount -= amount


@attrs.define
class _OpenTab:
    """Reservation of a tab that is not settled yet."""

    amount: int
    used_amount: int = 0  # amount of the requests in the tab

    @property
    def unused_amount(self) -> int:
        return max(0, self.amount - self.used_amount)  # prices are rounded up, so their sum may exceed `amount`


class Budgets:
    """Enforces all limits. Remembers the amounts of the last day's jobs."""

    def __init__(self, limits: Sequence[SpendingLimit]) -> None:
        self._limits = limits
        self._amount_by_job: dict[str, int] = {}
        self._time_and_key_by_job: dict[str, tuple[float, str]] = {}
        self._tabs: dict[str, _OpenTab] = {}

    @classmethod
    def from_settings(cls, settings: ServeSettings, token: Token, entries: Iterable[SpendEntry]) -> "Budgets":
        """Create the budgets from the settings. `entries`: the last day's jobs and all running jobs, oldest first."""
        budget = settings.budget
        day = budget.per_day
        if day is None:  # cap unverified decimals, which the coordinator could inflate
            decimals = token.decimals if token.decimals_verified else min(token.decimals, 6)
            day = DEFAULT_TOKENS_PER_DAY * 10**decimals
        configured: list[tuple[str | None, float, int | None, str]] = [
            (None, HOUR_S, budget.per_hour, "an hour, all keys together"),
            (None, DAY_S, day, "a day, all keys together"),
        ]
        for name, key in settings.keys.items():
            configured.append((name, HOUR_S, key.per_hour, f"an hour by key {name}"))
            configured.append((name, DAY_S, key.per_day, f"a day by key {name}"))
        budgets = cls(
            [
                SpendingLimit(key, seconds, max_amount, f"{token.format(max_amount)} {text}")
                for key, seconds, max_amount, text in configured
                if max_amount
            ]
        )
        for job in entries:
            amount = job.amount if job.cost is None else job.cost
            budgets._take_from_tab(job.job_id, amount, job.at)
            budgets._record(job.key, job.job_id, amount, job.at)
            if job.kind == TAB_KIND and job.cost is None:
                budgets._tabs[job.job_id] = _OpenTab(amount)
        return budgets

    def limits_with_usage(self, now: float) -> list[tuple[SpendingLimit, int]]:
        """Return each limit with the amount that is spent or reserved."""
        return [(limit, limit.used_amount(now, self._amount_by_job)) for limit in self._limits]

    @property
    def descriptions(self) -> list[str]:
        return [limit.description for limit in self._limits]

    def reserve(self, key: str, job_id: str, amount: int, now: float) -> None:
        """Reserve an amount. A repeated job, such as a retried batch, replaces its earlier reservation.

        Raises Problem (`insufficient_quota`), with nothing reserved, if a limit would be exceeded.
        """
        self._forget_old_jobs(now)
        self._remove(job_id)
        self._take_from_tab(job_id, amount, now)
        for limit in self._limits_for(key):
            left = limit.max_amount - limit.used_amount(now, self._amount_by_job)
            if amount > left:
                self._take_from_tab(job_id, -amount, now)
                raise budget_problem(
                    f"the request needs {amount} base units, but {max(0, left)} are left of {limit.description}"
                )
        self._record(key, job_id, amount, now)

    def reserve_tab(self, key: str, job_id: str, amount: int, now: float) -> None:
        """Reserve the amount of a tab until it is settled. Raises Problem as `reserve` does."""
        self.reserve(key, job_id, amount, now)
        self._tabs[job_id] = _OpenTab(amount)

    def remaining_amount(self, key: str, now: float) -> int | None:
        """Return the amount that may still be reserved for a key, or None without a limit."""
        self._forget_old_jobs(now)
        amounts = [limit.max_amount - limit.used_amount(now, self._amount_by_job) for limit in self._limits_for(key)]
        return max(0, min(amounts)) if amounts else None

    def _record(self, key: str, job_id: str, amount: int, posted_at: float) -> None:
        self._remove(job_id)
        self._amount_by_job[job_id] = amount
        self._time_and_key_by_job[job_id] = (posted_at, key)
        for limit in self._limits_for(key):
            limit.add_job(posted_at, job_id, amount)

    def settle(self, job_id: str, cost: int, now: float) -> None:
        """Replace the authorised amount with the cost, once the job has ended."""
        self._tabs.pop(job_id, None)
        if (known := self._amount_by_job.get(job_id)) is not None:
            self._change_amount(job_id, cost, now)
            self._take_from_tab(job_id, cost - known, now)

    def _take_from_tab(self, job_id: str, amount: int, now: float) -> None:
        """Subtract the amount of a request from the reservation of its open tab."""
        tab_id, number = split_tab_request_id(job_id)
        if number is not None and (tab := self._tabs.get(tab_id)) is not None:
            tab.used_amount += amount
            self._change_amount(tab_id, tab.unused_amount, now)

    def _change_amount(self, job_id: str, amount: int, now: float) -> None:
        if (known := self._amount_by_job.get(job_id)) is None:  # the job has left every window
            return
        at, key = self._time_and_key_by_job[job_id]
        for limit in self._limits_for(key):
            limit.used_amount(now, self._amount_by_job)  # expire entries before the amount changes
            limit.change_job_amount(at, now, amount - known)
        self._amount_by_job[job_id] = amount

    def _remove(self, job_id: str) -> None:
        """Remove a job's entry, because a job with two entries would be subtracted twice when it leaves the window."""
        if (known := self._time_and_key_by_job.pop(job_id, None)) is None:
            return
        (at, key), amount = known, self._amount_by_job.pop(job_id)
        for limit in self._limits_for(key):
            limit.remove_job(at, job_id, amount)

    def _limits_for(self, key: str) -> list[SpendingLimit]:
        return [limit for limit in self._limits if limit.key is None or limit.key == key]

    def _forget_old_jobs(self, now: float) -> None:
        """Remove jobs that have left every window."""
        for limit in self._limits:
            limit.used_amount(now, self._amount_by_job)
        while self._time_and_key_by_job:
            job_id, (at, _) = next(iter(self._time_and_key_by_job.items()))
            if at > now - DAY_S:
                return
            del self._time_and_key_by_job[job_id], self._amount_by_job[job_id]
