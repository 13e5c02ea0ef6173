"""Recent durations of claims, runs and relays, from which deadlines are computed.

Measurements only increase the configured margins, never lower them.
"""

from collections import defaultdict, deque
from typing import Final

import attrs
import trio

_REMEMBERED_DURATIONS: Final = 64
_USUAL_QUANTILE: Final = 0.9
# Measurements expire after these seconds. High ones stop claims, and without claims there are no new measurements, so
# without expiry a chain that was slow for a minute would exclude short windows for ever.
_NETWORK_WINDOW_S: Final = 120.0
_BACKEND_WINDOW_S: Final = 3600.0


@attrs.define(slots=True)
class _Recent:
    lasting: float
    values: deque[tuple[float, float]] = attrs.field(
        factory=lambda: deque(maxlen=_REMEMBERED_DURATIONS)
    )  # (when, seconds)

    def add(self, seconds: float) -> None:
        self.values.append((trio.current_time(), seconds))

    def usual(self) -> float:
        """Return the 90 % quantile of the recent durations, or 0 without any."""
        since = trio.current_time() - self.lasting
        ranked = sorted(seconds for when, seconds in self.values if when >= since)
        return ranked[min(len(ranked) - 1, int(_USUAL_QUANTILE * len(ranked)))] if ranked else 0.0


@attrs.define(slots=True)
class Timings:
    """Recent durations in seconds of relayed ops, payload fetches and each model's runs."""

    _relay: _Recent = attrs.field(factory=lambda: _Recent(_NETWORK_WINDOW_S))
    _fetch: _Recent = attrs.field(factory=lambda: _Recent(_NETWORK_WINDOW_S))
    _backend: defaultdict[str, _Recent] = attrs.field(factory=lambda: defaultdict(lambda: _Recent(_BACKEND_WINDOW_S)))

    def relayed(self, seconds: float) -> None:
        self._relay.add(seconds)

    def fetched(self, seconds: float) -> None:
        self._fetch.add(seconds)

    def ran(self, model: str, seconds: float) -> None:
        self._backend[model].add(seconds)

    def margin(self, configured: float) -> float:
        """Return the time to leave after the run: enough for two relays, in case one is lost."""
        return max(configured, 2 * self._relay.usual())

    def needed(self, model: str, configured_margin: float) -> float:
        """Return the shortest SLA worth claiming: the time for claim, fetch and run, and the margin."""
        before = self._relay.usual() + self._fetch.usual() + self._backend[model].usual()
        return before + self.margin(configured_margin)
