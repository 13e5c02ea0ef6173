"""Crash points: code is cancelled at every place where it waits, each place once.

    points = CrashPoints("coordinatord")
    while await points.live(anyio.CancelScope(), work) is not None:  # cancelled where it never was before
        ...  # start it again, undisturbed, and see that nothing was lost

Under trio the same is `TrioCrashPoints`, an instrument of the loop.

A place is the chain of lines from the outermost function of this project down to the statement that waits; `BEGIN` and
`COMMIT` of one `async with` are two. What the code starts in tasks of its own is watched as well. Nobody counts waits:
the places are found by running into them, until a run from start to end meets no new one.
"""

import asyncio
import gc
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio
import attrs
import trio

ROOT: Final = Path(__file__).parents[2]
Place = tuple[str, ...]
_APART_S: Final = 0.05  # seconds between two planted errors of one task
_PRIMITIVES: Final = ("_core", "_backends", "asyncio")  # folders of anyio's and asyncio's own locks and task groups
Waits = Callable[[Coroutine[Any, Any, Any]], BaseException | None]
_WATCHING: ContextVar["Waits | None"] = ContextVar("watching", default=None)


@attrs.define(eq=False)
class CrashPoints:
    """`package`: places are lines of its code. `through`: only those count whose chain goes through one of these
    files. `met`: all that were met so far, in their order."""

    package: str
    through: tuple[str, ...] = ("",)
    met: dict[Place, None] = attrs.field(factory=dict)

    async def live(self, scope: anyio.CancelScope, work: Callable[[], Coroutine[Any, Any, None]]) -> Place | None:
        """Await `work()` in `scope`, which is cancelled at the first new place: the place, or None when `work` ended,
        or was cancelled by others, without having met one."""
        died_at: Place | None = None

        def waits(coroutine: Coroutine[Any, Any, Any]) -> None:
            nonlocal died_at
            if scope.cancel_called:
                return
            if (died_at := self.is_new(coroutine)) is not None:
                scope.cancel()

        loop = asyncio.get_running_loop()
        former = loop.get_task_factory()
        loop.set_task_factory(_watching_tasks)
        try:
            with scope:
                await watched(work, waits)
        finally:
            loop.set_task_factory(former)
        return died_at

    def is_new(self, coroutine: object) -> Place | None:
        """The place that it waits at, when nobody did before."""
        place = tuple(_lines_of(coroutine, self.package))
        if place in self.met or not any(file in line for line in place for file in self.through):
            return None
        self.met[place] = None
        return place


@attrs.define(eq=False)
class ForeignErrors:
    """Raises exceptions that no code expects, one at each place where a watched coroutine waits, each place once.

        with ForeignErrors("coordinatord").planted() as errors:
            tasks.start_soon(errors.watch("indexer", index))

    Under asyncio the tasks that a watched coroutine starts are watched as well. Where a library waits, the exception is
    raised when the wait is over, because the library's own state has to stay whole. Elsewhere it is raised at once.
    Nothing is raised within locks and task groups: they cannot raise, and would stay taken.
    """

    package: str
    kinds: Sequence[Callable[[str], Exception]] = (ValueError, OverflowError, OSError, KeyError)
    enabled: bool = True
    raised: dict[tuple[str, Place], Exception] = attrs.field(factory=dict)
    in_libraries: set[Exception] = attrs.field(factory=set)  # those that a library may have replaced by its own
    _last: dict[str, float] = attrs.field(factory=dict)

    @contextmanager
    def planted(self) -> Iterator["ForeignErrors"]:
        """For asyncio: watch the tasks of tasks."""
        loop = asyncio.get_running_loop()
        former = loop.get_task_factory()
        loop.set_task_factory(_watching_tasks)
        try:
            yield self
        finally:
            self.enabled = False
            loop.set_task_factory(former)

    def watch(self, name: str, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        def waits(coroutine: Coroutine[Any, Any, Any]) -> Exception | None:
            place = tuple(_lines_of(coroutine, self.package))
            if not self.enabled or not place or (name, place) in self.raised or _waits_in_primitive(coroutine):
                return None
            now = anyio.current_time()
            if now - self._last.get(name, -math.inf) < _APART_S:  # the one before is still on its way out
                return None
            self._last[name] = now
            number = len(self.raised)
            error = self.kinds[number % len(self.kinds)](f"planted error {number}")
            self.raised[name, place] = error
            if _waits_in_a_library(coroutine):
                self.in_libraries.add(error)
            return error

        async def awaited() -> Any:
            return await work()

        return partial(watched, awaited, waits)


async def watched(work: Callable[[], Coroutine[Any, Any, Any]], waits: Waits) -> Any:
    """Await `work()`. `waits` is called each time that it, or a task that it starts, waits."""
    token = _WATCHING.set(waits)
    try:
        return await _Steps(work(), waits)
    finally:
        _WATCHING.reset(token)


class TrioCrashPoints(trio.abc.Instrument):
    """For `trio.lowlevel.add_instrument`. Its `scope` is cancelled at the first new place: `died_at`."""

    def __init__(self, points: CrashPoints) -> None:
        self.points = points
        self.scope: trio.CancelScope | None = None
        self.died_at: Place | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.scope is None or self.scope.cancel_called or task.coro.cr_frame is None:
            return
        self.died_at = self.points.is_new(task.coro)
        if self.died_at is not None:
            self.scope.cancel()


def _frames(coroutine: object) -> Iterator[FrameType]:
    """The frames that wait, from the outermost to the innermost."""
    waiting: object | None = coroutine
    while waiting is not None:
        if inspect.iscoroutine(waiting):
            frame, following = waiting.cr_frame, waiting.cr_await
        elif inspect.isgenerator(waiting):
            frame, following = waiting.gi_frame, waiting.gi_yieldfrom
        elif inspect.isasyncgen(waiting):
            frame, following = waiting.ag_frame, waiting.ag_await
        else:  # `async for` and `async with` over a generator: what runs in it is known to the collector alone
            frame, following = None, next(filter(inspect.isasyncgen, gc.get_referents(waiting)), None)
        if frame is not None:
            yield frame
        waiting = following


def _lines_of(coroutine: object, package: str) -> Iterator[str]:
    for frame in _frames(coroutine):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / package):
            yield f"{path.relative_to(ROOT)}:{frame.f_lineno}"
        elif path.parts[-2:] == ("asyncpg", "transaction.py"):
            yield frame.f_code.co_name  # begin, commit or rollback: of one line of ours


def _watching_tasks(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> "asyncio.Task[Any]":
    waits = _WATCHING.get()
    return asyncio.Task(coroutine if waits is None else _steps(coroutine, waits), loop=loop, **options)


async def _steps(coroutine: Coroutine[Any, Any, Any], waits: Waits) -> Any:
    return await _Steps(coroutine, waits)


def _waits_in_a_library(coroutine: object) -> bool:
    """True within a library that keeps state over the wait, trio's scheduler among them."""
    libraries = ("/asyncpg/", "/aiohttp/", "/httpx/", "/trio/")
    return any(library in frame.f_code.co_filename for frame in _frames(coroutine) for library in libraries)


def _waits_in_primitive(coroutine: object) -> bool:
    """True within a lock or the end of a task group, of anyio or asyncio."""
    return any(
        frame.f_code.co_name.startswith(("acquire", "__aexit__"))
        and Path(frame.f_code.co_filename).parts[-2] in _PRIMITIVES
        for frame in _frames(coroutine)
    )


@attrs.frozen(eq=False)
class _Steps:
    """A coroutine step by step. `waits` is called each time that it is about to wait. An exception that `waits` returns
    is raised there."""

    coroutine: Coroutine[Any, Any, Any]
    waits: Waits

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self.coroutine.send, None)
        while True:
            try:
                future = step()
            except StopIteration as end:
                return end.value
            error = self.waits(self.coroutine)
            if error is not None and not _waits_in_a_library(self.coroutine):
                step = partial(self.coroutine.throw, error)
                continue
            try:
                got = yield future
                step = partial(self.coroutine.send, got) if error is None else partial(self.coroutine.throw, error)
            except GeneratorExit:
                self.coroutine.close()
                raise
            except BaseException as thrown:
                step = partial(self.coroutine.throw, thrown)  # the coroutine's to handle
