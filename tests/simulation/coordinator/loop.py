"""An asyncio event loop without a clock and without sockets. When no task is ready, time jumps to the next timer.

A seed orders tasks that are ready at the same moment. Each task's hash is a counter, so sets of tasks have the same
order in every process.
"""

import asyncio
import heapq
import itertools
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final

import anyio

_MAX_STEPS: Final = 20_000_000  # of a run; more means a loop without progress of time


class NumberedTask(asyncio.Task[Any]):
    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number = number
        self.owner: object = None  # process that owns the running callback
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`stepped` is called after every step of any task."""

    def __init__(self, seed: object) -> None:
        super().__init__()
        self._chance = random.Random(f"turns {seed}")
        self._now = 0.0
        self._numbers = itertools.count(1)
        self.steps = 0
        self.stepped: Callable[[], None] = _nobody_listens
        self.connect: Callable[..., Any] | None = None  # destination of connections
        self.owner: Callable[[], object] = lambda: None
        self._tasks: list[NumberedTask] = []
        self.set_task_factory(self._task)

    def time(self) -> float:
        return self._now

    def _task(
        self, _: events.AbstractEventLoop, coro: Any, *, context: Context | None = None, **options: Any
    ) -> NumberedTask:
        task = NumberedTask(next(self._numbers), coro, loop=self, context=context, **options)
        task.owner = self.owner() if context is None else context.run(self.owner)
        self._tasks.append(task)
        return task

    def cancel_all_of(self, owner: object) -> None:
        """Cancel every task that one process began, and all their descendants."""
        self._tasks = [task for task in self._tasks if not task.done()]
        for task in self._tasks:
            if task.owner is owner:
                task.cancel()

    async def create_connection(self, protocol_factory: Any, *address: Any, **_: Any) -> Any:
        assert self.connect is not None, "nothing listens in this simulation"
        return await self.connect(protocol_factory, *address)

    def _run_once(self) -> None:
        """Run everything that is ready now, or due at the time of the next timer."""
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined] # asyncio's own
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise RuntimeError("everybody waits for somebody else, and no timer is left")
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        batch = self._in_turn(list(ready))
        ready.clear()
        for handle in batch:
            if not handle._cancelled:
                self.steps += 1
                handle._run()
                self.stepped()
        if self.steps > _MAX_STEPS:
            raise RuntimeError("no time passes any more")

    def _in_turn(self, ready: list[Any]) -> list[Any]:
        """Order callbacks as they came, as asyncio guarantees, and then tasks in random order."""
        tasks = {handle: _number(handle) for handle in ready}
        steps = [handle for handle in ready if tasks[handle]]
        if len(steps) > 1:
            steps.sort(key=tasks.__getitem__)
            self._chance.shuffle(steps)
        return [handle for handle in ready if not tasks[handle]] + steps

    def _process_events(self, _: Any) -> None:
        raise AssertionError("a simulation has no events of its own")


def _number(handle: Any) -> int:
    owner = getattr(handle._callback, "__self__", None)
    return owner.number if isinstance(owner, NumberedTask) else 0


def _nobody_listens() -> None: ...


async def inline(act: Callable[..., Any], *arguments: Any, **_: object) -> Any:
    """Replaces `anyio.to_thread.run_sync` without a thread."""
    await anyio.lowlevel.checkpoint()
    result = act(*arguments)
    await anyio.lowlevel.checkpoint()
    return result
