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
    """Limits on event streams and waiting polls: `max_total` in this process, `max_per_caller` for each caller."""

    max_total: int
    max_per_caller: int
    _open_by_caller: Counter[str] = attrs.field(factory=Counter, init=False)
    _total_open: int = attrs.field(default=0, init=False)

    def has_room(self, caller: str) -> bool:
        return self._total_open < self.max_total and self._open_by_caller[caller] < self.max_per_caller

    @contextmanager
    def count_connection(self, caller: str, kind: Literal["stream", "poll"]) -> Iterator[None]:
        """Count a connection while the block runs. Raise Retryable when the caller or the process is at its limit."""
        if not self.has_room(caller):
            error_kind: Literal["busy", "not_ready"] = "not_ready"
            reason, message = (
                "refused",
                f"this process already has {self.max_total} event streams and waiting polls, its limit",
            )
            if self._open_by_caller[caller] >= self.max_per_caller:
                error_kind, reason = "busy", "caller"
                message = f"a caller may have at most {self.max_per_caller} event streams and waiting polls"
            metrics.connections_ended.labels("listener", reason).inc()
            raise Retryable(error_kind, f"{message}; poll instead, or try again later", retry_after=30)
        self._open_by_caller[caller] += 1
        self._total_open += 1
        metrics.event_listeners.labels(kind).inc()
        try:
            yield
        finally:
            metrics.event_listeners.labels(kind).dec()
            self._total_open -= 1
            self._open_by_caller[caller] -= 1
            if not self._open_by_caller[caller]:
                del self._open_by_caller[caller]
