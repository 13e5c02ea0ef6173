"""Crash points: cancel code at every place where it waits, each place once.

    points = CrashPoints("coordinatord")
    while await points.live(anyio.CancelScope(), work) is not None:  # cancelled at a new place
        ...  # restart it without a crash, and check that nothing was lost

`TrioCrashPoints` does the same under trio, as an instrument of the loop.

A place is the chain of lines from this project's outermost function to the waiting statement. `BEGIN` and `COMMIT` of
one `async with` are two places. Tasks that the code starts are watched too. Tests need no count of places: each run
crashes at the first new place, until a run meets none.
"""

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio
import attrs
import trio

ROOT: Final = Path(__file__).parents[3]
Place = tuple[str, ...]
Waits = Callable[[Coroutine[Any, Any, Any]], BaseException | None]
_WATCHING: ContextVar["Waits | None"] = ContextVar("watching", default=None)


@attrs.define(eq=False)
class CrashPoints:
    """`package` names the package whose lines make up places. If `through` is set, only places whose chain passes
    through one of these files count. `met` lists all places so far, in order."""

    package: str
    through: tuple[str, ...] = ("",)
    met: dict[Place, None] = attrs.field(factory=dict)

    async def live(self, scope: anyio.CancelScope, work: Callable[[], Coroutine[Any, Any, None]]) -> Place | None:
        """Await `work()` in `scope`, which is cancelled at the first new place. Return the place, or None if `work` met
        no new place before it ended or was cancelled from outside."""
        died_at: Place | None = None

        def waits(coroutine: Coroutine[Any, Any, Any]) -> None:
            nonlocal died_at
            if scope.cancel_called:
                return
            if (died_at := self.is_new(coroutine)) is not None:
                scope.cancel()

        loop = asyncio.get_running_loop()
        former = loop.get_task_factory()
        loop.set_task_factory(watching_tasks)
        try:
            with scope:
                await watched(work, waits)
        finally:
            loop.set_task_factory(former)
        return died_at

    def is_new(self, coroutine: object) -> Place | None:
        """Return the place where the coroutine waits, if this place is new."""
        place = tuple(lines_of(coroutine, self.package))
        if place in self.met or not any(file in line for line in place for file in self.through):
            return None
        self.met[place] = None
        return place


async def watched(work: Callable[[], Coroutine[Any, Any, Any]], waits: Waits) -> Any:
    """Await `work()`. Call `waits` each time that it, or a task that it starts, waits."""
    token = _WATCHING.set(waits)
    try:
        return await _Steps(work(), waits)
    finally:
        _WATCHING.reset(token)


class TrioCrashPoints(trio.abc.Instrument):
    """An instrument for `trio.lowlevel.add_instrument`. It cancels `scope` at the first new place, and stores the place
    in `died_at`."""

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


def frames_of(coroutine: object) -> Iterator[FrameType]:
    """Return the waiting frames, from the outermost to the innermost."""
    waiting: object | None = coroutine
    while waiting is not None:
        if inspect.iscoroutine(waiting):
            frame, following = waiting.cr_frame, waiting.cr_await
        elif inspect.isgenerator(waiting):
            frame, following = waiting.gi_frame, waiting.gi_yieldfrom
        elif inspect.isasyncgen(waiting):
            frame, following = waiting.ag_frame, waiting.ag_await
        else:  # only the garbage collector knows the frame inside `async for` and `async with` over a generator
            frame, following = None, next(filter(inspect.isasyncgen, gc.get_referents(waiting)), None)
        if frame is not None:
            yield frame
        waiting = following


def lines_of(coroutine: object, package: str) -> Iterator[str]:
    for frame in frames_of(coroutine):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / package):
            yield f"{path.relative_to(ROOT)}:{frame.f_lineno}"
        elif path.parts[-2:] == ("asyncpg", "transaction.py"):
            yield frame.f_code.co_name  # distinguishes begin, commit and rollback of one line


def watching_tasks(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
) -> "asyncio.Task[Any]":
    waits = _WATCHING.get()
    return asyncio.Task(coroutine if waits is None else _steps(coroutine, waits), loop=loop, **options)


async def _steps(coroutine: Coroutine[Any, Any, Any], waits: Waits) -> Any:
    return await _Steps(coroutine, waits)


def waits_in_a_library(coroutine: object) -> bool:
    """Return False if asyncio or anyio waits without a library in between that keeps state during the wait."""
    paths = [frame.f_code.co_filename for frame in frames_of(coroutine)]
    libraries = ("/asyncpg/", "/aiohttp/", "/httpx/", "/trio/")
    if any(library in path for path in paths for library in libraries):
        return True
    return not any(f"/{package}/" in paths[-1] for package in ("asyncio", "anyio"))


@attrs.frozen(eq=False)
class _Steps:
    """Run a coroutine step by step. `waits` is called before each wait. If it returns an exception, the exception is
    raised there."""

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
            if error is not None and not waits_in_a_library(self.coroutine):
                step = partial(self.coroutine.throw, error)
                continue
            try:
                got = yield future
                step = partial(self.coroutine.send, got) if error is None else partial(self.coroutine.throw, error)
            except GeneratorExit:
                self.coroutine.close()
                raise
            except BaseException as thrown:
                step = partial(self.coroutine.throw, thrown)  # the coroutine handles it
