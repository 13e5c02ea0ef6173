"""Stop in two steps: accept no new jobs, then cancel running work near the end of the grace period."""

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
        """Cancel running work. Its jobs are failed, which refunds their owners at once."""
        self._cut = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Wrap work that `cut` may cancel. Cancelled work raises `WorkFailed` (`unservable`)."""
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
