"""Lives of coordinators: `coordinatord.run.app.run` without its sockets and signals.

Nothing that a killed life does while it unwinds has an effect: its database sessions are closed, and its requests and
responses are dropped.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from email.utils import formatdate
from typing import Any, Final
from unittest.mock import patch

import anyio
import httpx
from anyio.abc import TaskStatus

from coordinatord.api.batches import worker
from coordinatord.chain.rpc import nodes
from coordinatord.run import app
from coordinatord.run.config import Config
from coordinatord.storage.pins import store as pins
from tests.simulation.coordinator.chain import SimulatedChain
from tests.simulation.coordinator.exchange import Exchange
from tests.simulation.coordinator.faults import Faults
from tests.simulation.coordinator.loop import SimulatedLoop, inline
from tests.simulation.coordinator.postgres import SimulatedServer
from tests.simulation.coordinator.store import SimulatedStore

_MAX_RESTART_S: Final = 12.0
_BATCH_POLL_S: Final = 2.0  # by default, polls would be a third of all statements

LIFE: ContextVar["Life | None"] = ContextVar("life", default=None)


class Life:
    """One process of a coordinator, from its start to its end."""

    def __init__(self, name: str, config: Config) -> None:
        self.name = name
        self.alive = True
        self.application: Any = None  # once it serves
        self.told = asyncio.Event()  # set to stop the process
        self.dead = asyncio.Event()
        self.failure: BaseException | None = None
        self._config = config
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        self._loop = loop
        self._context: Context = copy_context()
        self._context.run(LIFE.set, self)
        self._answering: dict[asyncio.Task[None], Exchange] = {}
        self.task = self._loop.create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        try:
            await app.run(self._config)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self.alive:
                self.failure = error
        finally:
            self.application = None

    def die(self) -> None:
        """End the process. Its later actions have no effect."""
        self.alive = False
        self.application = None
        self.dead.set()
        for exchange in self._answering.values():
            exchange.cut()
        self._loop.cancel_all_of(self)

    async def serve(self, application: Any, _: object, stopped: Callable[[], Awaitable[None]], **__: Any) -> None:
        """Replaces `serve_until`. Requests arrive through `ask`."""
        self.application = application
        await stopped()
        self.application = None
        with anyio.move_on_after(self._config.limits.shutdown_grace_s, shield=True):
            while self._answering:
                await asyncio.wait(self._answering)

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """Return the response, with its body unread. Raise httpx's errors if there is no response."""
        if self.application is None:
            raise httpx.ConnectError("nobody listens")
        await request.aread()
        exchange = Exchange(request)
        task = self._loop.create_task(exchange.run(self.application), context=self._context)
        self._answering[task] = exchange
        task.add_done_callback(self._answered)
        return await exchange.response()

    def _answered(self, task: "asyncio.Task[None]") -> None:
        self._answering.pop(task).cut()
        if self.alive and not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()


class Coordinator:
    """A process that restarts whenever it ends."""

    def __init__(self, name: str, config: Config, seed: object) -> None:
        self.name, self._config = name, config
        self.life: Life | None = None
        self.lives = 0
        self._chance = random.Random(f"{name} {seed}")
        self._remains: list[Life] = []

    async def run(self) -> None:
        while True:
            life = self.life = Life(f"{self.name}.{self.lives}", self._config)
            self.lives += 1
            self._remains.append(life)
            done = asyncio.create_task(life.dead.wait())
            await asyncio.wait({life.task, done}, return_when=asyncio.FIRST_COMPLETED)
            done.cancel()
            life.die()
            self.life = None
            await asyncio.sleep(self._chance.uniform(0, _MAX_RESTART_S))

    def kill(self) -> None:
        if self.life is not None:
            self.life.die()

    def stop(self) -> None:
        if self.life is not None:
            self.life.told.set()

    async def end(self) -> list[str]:
        """Describe lives that ended unexpectedly, and requests that crashed."""
        self.kill()
        await asyncio.wait([life.task for life in self._remains])
        return [f"{one.name} fell: {_leaf(one.failure)!r}" for one in self._remains if one.failure is not None]


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Front(httpx.AsyncBaseTransport):
    """Send each request to a random coordinator, with planned faults."""

    def __init__(self, coordinators: list[Coordinator], faults: Faults, seed: object) -> None:
        self._coordinators, self._faults = coordinators, faults
        self._chance = random.Random(f"front {seed}")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._chance.expovariate(1 / 0.03))
        fault = self._faults.due("request")
        if fault is not None:
            self._faults.trace.add(f"{request.method} {request.url.path[:24]} meets {fault.kind}")
            if fault.kind == "unreached":
                raise httpx.ConnectError(fault.kind)
            if fault.kind == "late":
                await asyncio.sleep(fault.seconds)
        life = self._chance.choice(self._coordinators).life
        if life is None:
            raise httpx.ConnectError("nobody is there")
        response = await life.ask(request)
        response.headers["date"] = formatdate(time.time(), usegmt=True)  # as a real server does
        self._faults.trace.add(f"{life.name} {request.method} {request.url.path[:24]} {response.status_code}")
        if fault is not None and fault.kind == "lost":
            await response.aclose()
            raise httpx.ReadError(fault.kind)
        await asyncio.sleep(self._chance.expovariate(1 / 0.03))
        return response


@contextmanager
def in_place_of_the_world(
    loop: SimulatedLoop, server: SimulatedServer, chain: SimulatedChain, store: SimulatedStore, faults: Faults
) -> Iterator[None]:
    """Replace coordinatord's external dependencies inside the block."""
    loop.connect, loop.owner = server.connect, LIFE.get
    server.owner = LIFE.get
    faults.owner = LIFE.get
    faults.is_live = lambda life: not isinstance(life, Life) or life.alive
    with ExitStack() as stack:
        for target, name, stand_in in (
            (app, "listening_socket", lambda port, host: None),
            (app, "serve_until", _serve),
            (app, "_stop_on_signal", _stop_on_signal),
            (nodes, "open_transport", chain.open_transport),
            (pins, "open_http", store.open_http),
            (anyio.to_thread, "run_sync", inline),
            (worker, "POLL_INTERVAL_S", _BATCH_POLL_S),
        ):
            stack.enter_context(patch.object(target, name, stand_in))
        yield


async def _serve(*arguments: Any, **options: Any) -> None:
    life = LIFE.get()
    assert life is not None
    await life.serve(*arguments, **options)


async def _stop_on_signal(stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
    life = LIFE.get()
    assert life is not None
    task_status.started()
    try:
        await life.told.wait()
    finally:
        stop.set()
