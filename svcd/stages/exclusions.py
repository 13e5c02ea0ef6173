"""Jobs that are not to be claimed (again), and models that are not to be polled for a while."""

from collections.abc import Iterable
from typing import Final

import attrs
import trio

from svcd.clock import Clock

_PAUSE: Final = 10.0  # after a refusal that is about us: the next claim would meet the same
_FOR_GOOD: Final = 2 * 86_400  # no order is open for longer


@attrs.define(slots=True, eq=False)
class Exclusions:
    clock: Clock
    _until: dict[bytes, float] = attrs.field(factory=dict)  # Unix seconds
    _paused: dict[str, float] = attrs.field(factory=dict)  # loop time

    def remember(self, job_ids: Iterable[bytes]) -> None:
        """Those that an earlier run took on and did not settle."""
        for job_id in job_ids:
            self._until[job_id] = self.clock.wall() + _FOR_GOOD

    def add(self, job_id: bytes, expires_at: int) -> None:
        """Until its order has expired."""
        now = self.clock.wall()
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[job_id] = expires_at

    def __contains__(self, job_id: bytes) -> bool:
        return job_id in self._until

    def pause(self, model: str) -> None:
        self._paused[model] = trio.current_time() + _PAUSE

    def is_paused(self, model: str) -> bool:
        return trio.current_time() < self._paused.get(model, 0.0)
