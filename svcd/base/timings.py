"""Recent durations of claims, runs and relays, from which deadlines are computed.

Before anything was measured the configured figures stand alone; measured ones only ever make us more careful.
"""

from collections import defaultdict, deque
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
