"""Stop the daemon in two steps. First accept no new jobs, then cancel running work near the end of the grace period."""

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from svcd.base.end_reasons import WorkFailed


@attrs.define(slots=True, eq=False)
class Drain:
    """Shutdown of the daemon. `begun_event` is set when the daemon must accept no new jobs."""

    begun_event: trio.Event = attrs.field(factory=trio.Event)
    _is_work_cancelled: bool = False
    _scopes: set[trio.CancelScope] = attrs.field(factory=set)

    @property
    def stopping(self) -> bool:
        return self.begun_event.is_set()

    def begin(self) -> None:
        self.begun_event.set()

    def cancel_work(self) -> None:
        """Cancel running work. The stages then fail its jobs, which refunds the jobs' owners at once."""
        self._is_work_cancelled = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def cancellable(self) -> Iterator[None]:
        """Yield a context that `cancel_work` cancels. The context then raises `WorkFailed` (`unservable`)."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self._is_work_cancelled:
                scope.cancel()
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise WorkFailed("unservable", "the daemon is stopping")
