"""Recent durations, from which deadlines are computed. A relay lasts from the sending of an op until it is mined.

Measurements can raise the configured margins, but never lower them.
"""

from collections import defaultdict, deque
from typing import Final

import attrs
import trio

_MAX_STORED_DURATIONS: Final = 64
_MARGIN_QUANTILE: Final = 0.9

# Measured durations expire. High durations stop claims, and without claims there are no new measurements. Without
# expiry, a chain that was slow for a minute would exclude short windows forever.
_NETWORK_DURATION_LIFETIME_S: Final = 120.0
_BACKEND_DURATION_LIFETIME_S: Final = 3600.0


@attrs.define(slots=True)
class _RecentDurations:
    lifetime_s: float

    # Pairs of loop time and duration.
    measurements: deque[tuple[float, float]] = attrs.field(factory=lambda: deque(maxlen=_MAX_STORED_DURATIONS))

    def add(self, seconds: float) -> None:
        self.measurements.append((trio.current_time(), seconds))

    def high_quantile(self) -> float:
        """Return the 90 % quantile of the recent durations, or 0 without recent durations."""
        since = trio.current_time() - self.lifetime_s
        ranked = sorted(seconds for when, seconds in self.measurements if when >= since)
        return ranked[min(len(ranked) - 1, int(_MARGIN_QUANTILE * len(ranked)))] if ranked else 0.0


@attrs.define(slots=True)
class Timings:
    """Recent durations in seconds: of relayed ops, of payload fetches, and of each model's runs."""

    _relay_durations: _RecentDurations = attrs.field(factory=lambda: _RecentDurations(_NETWORK_DURATION_LIFETIME_S))
    _fetch_durations: _RecentDurations = attrs.field(factory=lambda: _RecentDurations(_NETWORK_DURATION_LIFETIME_S))
    _run_durations: defaultdict[str, _RecentDurations] = attrs.field(
        factory=lambda: defaultdict(lambda: _RecentDurations(_BACKEND_DURATION_LIFETIME_S))
    )

    def record_relay(self, seconds: float) -> None:
        self._relay_durations.add(seconds)

    def record_fetch(self, seconds: float) -> None:
        self._fetch_durations.add(seconds)

    def record_run(self, model: str, seconds: float) -> None:
        self._run_durations[model].add(seconds)

    def margin(self, configured_s: float) -> float:
        """Return the seconds to reserve after the run: enough to relay a settle twice, in case the first one fails."""
        return max(configured_s, 2 * self._relay_durations.high_quantile())

    def shortest_window(self, model: str, configured_margin_s: float) -> float:
        """Return the shortest window worth claiming, which has time for claim, fetch and run, plus the margin."""
        work_s = (
            self._relay_durations.high_quantile()
            + self._fetch_durations.high_quantile()
            + self._run_durations[model].high_quantile()
        )
        return work_s + self.margin(configured_margin_s)
