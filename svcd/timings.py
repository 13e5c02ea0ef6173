"""How long things took lately: what deadlines are computed from.

Before anything was measured the configured figures stand alone; measured ones only ever make us more careful.
"""

from collections import defaultdict, deque
from typing import Final

import attrs

_REMEMBERED: Final = 64
_USUALLY: Final = 0.9  # the share of past runs that an estimate would have covered


@attrs.define(slots=True)
class _Recent:
    values: deque[float] = attrs.field(factory=lambda: deque(maxlen=_REMEMBERED))

    def usual(self) -> float:
        """Enough for nine in ten of the recent ones; 0 when there are none."""
        if not self.values:
            return 0.0
        ranked = sorted(self.values)
        return ranked[min(len(ranked) - 1, int(_USUALLY * len(ranked)))]


@attrs.define(slots=True)
class Timings:
    """Seconds, per kind: a relayed op from request to answer, the fetch of a payload, a model's runs."""

    _relay: _Recent = attrs.field(factory=_Recent)
    _fetch: _Recent = attrs.field(factory=_Recent)
    _backend: defaultdict[str, _Recent] = attrs.field(factory=lambda: defaultdict(_Recent))

    def relayed(self, seconds: float) -> None:
        self._relay.values.append(seconds)

    def fetched(self, seconds: float) -> None:
        self._fetch.values.append(seconds)

    def ran(self, model: str, seconds: float) -> None:
        self._backend[model].values.append(seconds)

    def margin(self, configured: float) -> float:
        """What must be left of the SLA when the backend is done: two relays, so that a lost one can be repeated."""
        return max(configured, 2 * self._relay.usual())

    def needed(self, model: str, configured_margin: float) -> float:
        """The shortest SLA worth claiming: claim, fetch, run, and the margin."""
        before = self._relay.usual() + self._fetch.usual() + self._backend[model].usual()
        return before + self.margin(configured_margin)
