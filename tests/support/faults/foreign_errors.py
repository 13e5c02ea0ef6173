"""Raise unexpected exceptions at every place where a coroutine waits, and record what happens to them."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import structlog
from structlog.typing import EventDict

from tests.support.faults.crash_points import Place, frames_of, lines_of, waits_in_a_library, watched, watching_tasks

_PRIMITIVES: Final = ("_core", "_backends", "asyncio", "trio")  # folders of locks and task groups


@attrs.define(eq=False)
class ForeignErrors:
    """Raise unexpected exceptions, one at each place where a watched coroutine waits, each place once.

        with ForeignErrors("coordinatord").planted() as errors:
            tasks.start_soon(errors.watch("indexer", index))

    Under asyncio, tasks started by a watched coroutine are watched too. If a library waits, the exception is raised
    when the wait is over, because the library's state must stay valid. Elsewhere it is raised at once. Nothing is
    raised within locks and task groups: real errors do not occur there, and they would stay locked.
    """

    package: str
    kinds: Sequence[Callable[[str], Exception]] = (ValueError, OverflowError, OSError, KeyError)
    apart_seconds: float = 0.05  # between two in one task, so that the first can propagate
    enabled: bool = True
    raised: dict[tuple[str, Place], Exception] = attrs.field(factory=dict)
    in_libraries: set[Exception] = attrs.field(factory=set)  # errors that a library may have replaced
    _last: dict[str, float] = attrs.field(factory=dict)

    @contextmanager
    def planted(self) -> Iterator["ForeignErrors"]:
        """Watch child tasks too. For asyncio only."""
        loop = asyncio.get_running_loop()
        former = loop.get_task_factory()
        loop.set_task_factory(watching_tasks)
        try:
            yield self
        finally:
            self.enabled = False
            loop.set_task_factory(former)

    def watch(self, name: str, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        def waits(coroutine: Coroutine[Any, Any, Any]) -> Exception | None:
            place = tuple(lines_of(coroutine, self.package))
            if not self.enabled or not place or (name, place) in self.raised or _waits_in_primitive(coroutine):
                return None
            now = anyio.current_time()
            if now - self._last.get(name, -math.inf) < self.apart_seconds:
                return None
            self._last[name] = now
            number = len(self.raised)
            error = self.kinds[number % len(self.kinds)](f"planted error {number}")
            self.raised[name, place] = error
            if waits_in_a_library(coroutine):
                self.in_libraries.add(error)
            return error

        async def awaited() -> Any:
            return await work()

        return partial(watched, awaited, waits)


def _waits_in_primitive(coroutine: object) -> bool:
    """Return True within a lock or the exit of a task group, of anyio or asyncio."""
    return any(
        frame.f_code.co_name.startswith(("acquire", "__aexit__"))
        and Path(frame.f_code.co_filename).parts[-2] in _PRIMITIVES
        for frame in frames_of(coroutine)
    )


@contextmanager
def logged_exceptions() -> Iterator[set[BaseException]]:
    """Collect every exception logged with a traceback, including group members and causes."""
    found: set[BaseException] = set()

    def note(_: object, __: str, event: EventDict) -> EventDict:
        error = sys.exc_info()[1] if event.get("exc_info") is True else event.get("exc_info")
        if isinstance(error, BaseException):
            found.update(_leaves(error))
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [note]
    try:
        yield found
    finally:
        processors[:] = before


def _leaves(error: BaseException) -> set[BaseException]:
    """Return the exceptions in a group, and their causes."""
    found: set[BaseException] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            waiting += [each.__context__] if each.__context__ is not None else []
    return found
