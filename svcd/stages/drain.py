"""Two steps of stopping: accept no new jobs, then, near the end of the grace period, stop work on held jobs."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from svcd.base.end_reasons import WorkFailed


@attrs.define(slots=True, eq=False)
class Drain:
    begun: trio.Event = attrs.field(factory=trio.Event)
    _cut: bool = False
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def stopping(self) -> bool:
        return self.begun.is_set()

    def begin(self) -> None:
        self.begun.set()

    def cut(self) -> None:
        """What is being worked on ends now, and is failed: its owner is refunded at once."""
        self._cut = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Round work that may be cut: it then ends as `WorkFailed` (`unservable`)."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._cut:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise WorkFailed("unservable", "the daemon is stopping")
