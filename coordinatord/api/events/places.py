"""Limits on open event streams and waiting polls, because each uses memory even when idle."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import attrs

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable


@attrs.define(slots=True)
class Places:
    """Limits on streams and waiting polls: `total` in the process, `per_caller` for each caller."""

    total: int
    per_caller: int
    _taken: Counter[str] = attrs.field(factory=Counter, init=False)
    _all: int = attrs.field(default=0, init=False)

    def has_room(self, caller: str) -> bool:
        return self._all < self.total and self._taken[caller] < self.per_caller

    @contextmanager
    def held(self, caller: str, kind: Literal["stream", "poll"]) -> Iterator[None]:
        """Hold a place while the block runs. Raise Retryable when the caller or the process has none left."""
        if self._taken[caller] >= self.per_caller:
            raise self._refused(
                "caller", "busy", f"at most {self.per_caller} event streams and waiting polls of one caller"
            )
        if self._all >= self.total:
            raise self._refused(
                "refused", "not_ready", f"this process has its {self.total} event streams and waiting polls"
            )
        self._taken[caller] += 1
        self._all += 1
        metrics.event_listeners.labels(kind).inc()
        try:
            yield
        finally:
            metrics.event_listeners.labels(kind).dec()
            self._all -= 1
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]

    def _refused(
        self, why: Literal["caller", "refused"], kind: Literal["busy", "not_ready"], message: str
    ) -> Retryable:
        metrics.connections_ended.labels("listener", why).inc()
        return Retryable(kind, f"{message}; poll instead, or try again later", retry_after=30)
