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
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import trio

ROOT: Final = Path(__file__).parents[2]
Place = tuple[str, ...]
_WATCHING: ContextVar["Callable[[Coroutine[Any, Any, Any]], None] | None"] = ContextVar("watching", default=None)


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
        token = _WATCHING.set(waits)
        try:
            with scope:
                await _Steps(work(), waits)
        finally:
            _WATCHING.reset(token)
            loop.set_task_factory(former)
        return died_at

    def is_new(self, coroutine: object) -> Place | None:
        """The place that it waits at, when nobody did before."""
        place = tuple(_lines_of(coroutine, self.package))
        if place in self.met or not any(file in line for line in place for file in self.through):
            return None
        self.met[place] = None
        return place


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


def _lines_of(coroutine: object, package: str) -> Generator[str, None, None]:
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
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT / package):
                yield f"{path.relative_to(ROOT)}:{frame.f_lineno}"
            elif path.parts[-2:] == ("asyncpg", "transaction.py"):
                yield frame.f_code.co_name  # begin, commit or rollback: of one line of ours
        waiting = following


def _watching_tasks(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> "asyncio.Task[Any]":
    waits = _WATCHING.get()
    return asyncio.Task(coroutine if waits is None else _watched(coroutine, waits), loop=loop, **options)


async def _watched(coroutine: Coroutine[Any, Any, Any], waits: Callable[[Coroutine[Any, Any, Any]], None]) -> Any:
    return await _Steps(coroutine, waits)


@attrs.frozen(eq=False)
class _Steps:
    """A coroutine step by step: `waits` hears of it each time that it is about to wait."""

    coroutine: Coroutine[Any, Any, Any]
    waits: Callable[[Coroutine[Any, Any, Any]], None]

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self.coroutine.send, None)
        while True:
            try:
                future = step()
            except StopIteration as end:
                return end.value
            self.waits(self.coroutine)
            try:
                got = yield future
                step = partial(self.coroutine.send, got)
            except GeneratorExit:
                self.coroutine.close()
                raise
            except BaseException as thrown:
                step = partial(self.coroutine.throw, thrown)  # the coroutine's to handle
