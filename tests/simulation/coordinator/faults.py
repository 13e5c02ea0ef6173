"""Planned faults when they are due, and the processes that are still alive."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from tests.simulation.plan import Fault, Plan
from tests.simulation.trace import Trace

# Faults that replace a response. With `lost` and `hang_after` the request takes effect, but the response is lost.
_ANY: Final = ("unreached", "lost", "hang", "hang_after", "late", "busy", "gateway", "refused")
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "node": _ANY,
    "send": (*_ANY, "known", "full", "forgotten"),
    "statement": ("before", "after"),
    "commit": ("before", "after"),
    "request": ("unreached", "lost", "late"),
    "store": ("unreached", "lost", "unavailable", "late", "wrong"),
}
# Duration in seconds. For reorgs, depth in blocks.
WEATHER: Final[dict[str, tuple[str, ...]]] = {
    "reorg": ("back", "some", "some", "few", "gone", "behind"),
    "node_away": ("for a time",),
    "database_away": ("for a time",),
    "blocks": ("for a time",),
    "fees": ("for a time",),
    "outside": ("once",),
    "shut_out": ("for a time",),
}


class Faults:
    """`owner` returns the life that causes an action. `is_live` says if this life is still current."""

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.trace = trace
        self.met = 0
        self.owner: Callable[[], object] = lambda: None
        self.is_live: Callable[[object], bool] = lambda owner: True
        faults = sorted(plan.faults, key=lambda fault: fault.at)
        self._waiting = {place: deque(f for f in faults if f.place == place) for place in PLACES}
        self.weather = [fault for fault in faults if fault.place in WEATHER]
        self._noisy = plan.noisy

    def noisy(self) -> bool:
        return asyncio.get_running_loop().time() < self._noisy

    def due(self, place: str) -> Fault | None:
        """Return the next due fault for this place. Each fault occurs once."""
        waiting, now = self._waiting[place], asyncio.get_running_loop().time()
        if not waiting or waiting[0].at > now or now > self._noisy:
            return None
        self.met += 1
        return waiting.popleft()
