"""Limits on open event streams and waiting polls. Each uses memory even when idle."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import attrs

from coordinatord.base import metrics
from coordinatord.base.errors import Retryable


@attrs.define(slots=True)
class ConnectionLimits:
    """Limits on streams and waiting polls: `total` in the process, `per_caller` for each caller."""

    total: int
    per_caller: int
    _taken: Counter[str] = attrs.field(factory=Counter, init=False)
    _total_taken: int = attrs.field(default=0, init=False)

    def has_room(self, caller: str) -> bool:
        return self._total_taken < self.total and self._taken[caller] < self.per_caller

    @contextmanager
    def count_connection(self, caller: str, what: Literal["stream", "poll"]) -> Iterator[None]:
        """Hold a place while the block runs. Raise Retryable when the caller or the process has no place left."""
        if not self.has_room(caller):
            kind: Literal["busy", "not_ready"] = "not_ready"
            why, message = (
                "refused",
                f"this process already has {self.total} event streams and waiting polls, its limit",
            )
            if self._taken[caller] >= self.per_caller:
                kind, why = "busy", "caller"
                message = f"a caller may have at most {self.per_caller} event streams and waiting polls"
            metrics.connections_ended.labels("listener", why).inc()
            raise Retryable(kind, f"{message}; poll instead, or try again later", retry_after=30)
        self._taken[caller] += 1
        self._total_taken += 1
        metrics.event_listeners.labels(what).inc()
        try:
            yield
        finally:
            metrics.event_listeners.labels(what).dec()
            self._total_taken -= 1
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]
