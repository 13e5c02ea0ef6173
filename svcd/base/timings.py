"""Recent durations of claims, runs and relays, from which deadlines are computed.

Before anything was measured the configured figures stand alone; measured ones only ever make us more careful.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

_REMEMBERED: Final = 64
_USUALLY: Final = 0.9  # the share of past runs that an estimate would have covered
# Seconds for which a measurement counts. What keeps windows from being claimed keeps new measurements from being made:
# without an end to the old ones, a chain that was slow for a minute would end short windows for good.
_NETWORK_CHANGES: Final = 120.0
_BACKEND_CHANGES: Final = 3600.0


@attrs.define(slots=True)
class _Recent:
    lasting: float
    values: deque[tuple[float, float]] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED))  # (when, seconds)

    def add(self, seconds: float) -> None:
        self.values.append((trio.current_time(), seconds))

    def usual(self) -> float:
        """Enough for nine in ten of the recent ones; 0 when there are none."""
        since = trio.current_time() - self.lasting
        ranked = sorted(seconds for when, seconds in self.values if when >= since)
        return ranked[min(len(ranked) - 1, int(_USUALLY * len(ranked)))] if ranked else 0.0


@attrs.define(slots=True)
class Timings:
    """Seconds, per kind: a relayed op from request to answer, the fetch of a payload, a model's runs."""

    _relay: _Recent = attrs.field(factory=lambda: _Recent(_NETWORK_CHANGES))
    _fetch: _Recent = attrs.field(factory=lambda: _Recent(_NETWORK_CHANGES))
    _backend: defaultdict[str, _Recent] = attrs.field(factory=lambda: defaultdict(lambda: _Recent(_BACKEND_CHANGES)))

    def relayed(self, seconds: float) -> None:
        self._relay.add(seconds)

    def fetched(self, seconds: float) -> None:
        self._fetch.add(seconds)

    def ran(self, model: str, seconds: float) -> None:
        self._backend[model].add(seconds)

    def margin(self, configured: float) -> float:
        """What must be left of the SLA when the backend is done: two relays, so that a lost one can be repeated."""
        return max(configured, 2 * self._relay.usual())

    def needed(self, model: str, configured_margin: float) -> float:
        """The shortest SLA worth claiming: claim, fetch, run, and the margin."""
        before = self._relay.usual() + self._fetch.usual() + self._backend[model].usual()
        return before + self.margin(configured_margin)


# Wall-clock time, which signatures and the chain go by, beside the event loop's, which deadlines here go by.

MOST_SKEW: Final = 900.0
# A header has whole seconds, and is as old as its way here: below this the machine's own clock is the better one.
_TRIFLE: Final = 5.0
_SET: Final = 60.0  # one of the two clocks was set: what was known of them is known no longer


@attrs.define(slots=True, eq=False)
class Clock:
    """The coordinator's time, as far as the `date` of its answers tells it: ops are judged by it, and a machine's clock
    may be off by minutes. A correction of more than a quarter of an hour is not believed: whoever could make us sign
    far into the future could keep ops for later."""

    local: Callable[[], float] = time.time
    ahead: float = 0.0  # this machine's clock less the coordinator's, by its last answer
    _is_corrected: bool = True

    def heard(self, date: float) -> None:
        """`date`: that of an answer that has just begun to arrive, in Unix seconds."""
        ahead = self.local() - (date + 0.5)
        if abs(ahead - self.ahead) > _SET:
            self._is_corrected = True
        self.ahead = ahead

    def was_stale(self) -> None:
        """The chain called a time of ours stale: of two clocks that differ the other is right then. The coordinator's
        may be wrong as well as this machine's."""
        self._is_corrected = not self._is_corrected

    @property
    def is_believed(self) -> bool:
        return abs(self.ahead) <= MOST_SKEW

    def wall(self) -> float:
        """Unix seconds, corrected."""
        return self.local() - (self.ahead if self._is_corrected and _TRIFLE < abs(self.ahead) <= MOST_SKEW else 0.0)

    def now(self) -> int:
        """Unix seconds, for `issued_at`."""
        return int(self.wall())

    def in_loop_time(self, unix_seconds: float) -> float:
        """The moment on the clock of `trio.current_time()`. A wall clock that is set later does not move it."""
        return trio.current_time() + (unix_seconds - self.wall())
