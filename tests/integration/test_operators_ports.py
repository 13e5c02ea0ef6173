"""The operators' ports of both daemons withstand slow clients, many clients and a lack of file descriptors."""

import asyncio
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import anyio
import attrs
import pytest

from common.daemon.operators_port import UNREAD_RESPONSE_TIMEOUT_MS, bind_operators_port
from coordinatord.run.operators_port import MetricsHistory, operators_app, serve_operators
from svcd.stages.health import DaemonHealth, serve_metrics

SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
Serve = Callable[[socket.socket], Awaitable[None]]


@attrs.define
class Journal:
    works: bool = True


@pytest.fixture(params=["coordinatord", "svcd"])
def daemon(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def anyio_backend(daemon: str) -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": True}) if daemon == "coordinatord" else ("trio", {})


@pytest.fixture
def serve(daemon: str) -> Serve:
    if daemon == "coordinatord":
        return partial(serve_operators, operators_app(lambda: None, MetricsHistory()))
    return partial(serve_metrics, DaemonHealth(Journal()))  # type: ignore[arg-type] # all that it reads


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    with bind_operators_port("127.0.0.1", 0, "PORT") as bound:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, bound)
            yield bound.getsockname()[1]
            tasks.cancel_scope.cancel()


async def scraped(port: int) -> bytes:
    """Return the beginning of the response."""
    with anyio.fail_after(10):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(SCRAPE)
            return await stream.receive()


async def test_many_idle_connections_do_not_delay_a_scrape(serve: Serve) -> None:
    async with serving(serve) as port, AsyncExitStack() as idle:
        for _ in range(200):
            await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
        began = time.monotonic()
        assert b" 200 " in await scraped(port)
        assert time.monotonic() - began < 2


async def test_port_answers_after_descriptors_ran_out(serve: Serve) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving(serve) as port:
        assert b" 200 " in await scraped(port)
        with socket.socket() as client:
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                client.connect_ex(("127.0.0.1", port))
                await anyio.sleep(0.5)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert b" 200 " in await scraped(port)


async def test_scrape_waits_for_a_busy_process(serve: Serve) -> None:
    """The event loop blocks for longer than hypercorn's default request timeout."""
    async with serving(serve) as port:
        assert b" 200 " in await scraped(port)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await anyio.sleep(0.1)
            await stream.send(SCRAPE)
            time.sleep(5.5)  # noqa: ASYNC251 - blocks the loop
            with anyio.fail_after(5):
                assert b" 200 " in await stream.receive()


async def test_unreading_clients_delay_neither_scrape_nor_exit(serve: Serve) -> None:
    _ignore_connections_that_the_kernel_ended()
    with anyio.fail_after(UNREAD_RESPONSE_TIMEOUT_MS / 1000 + 60):
        async with AsyncExitStack() as slow:
            async with serving(serve) as port:
                for _ in range(20):
                    client = slow.enter_context(socket.socket())
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    client.setblocking(False)
                    client.connect_ex(("127.0.0.1", port))
                    await anyio.wait_writable(client)
                    client.send(SCRAPE * 1000)
                await anyio.sleep(1)
                assert b" 200 " in await scraped(port)
                began = time.monotonic()
            assert time.monotonic() - began < UNREAD_RESPONSE_TIMEOUT_MS / 1000 + 20


def _ignore_connections_that_the_kernel_ended() -> None:
    """hypercorn's tasks end with their connection's error, which asyncio only logs."""
    with suppress(RuntimeError):  # on trio
        asyncio.get_running_loop().set_exception_handler(None)


async def test_idle_connections_do_not_delay_the_end(serve: Serve) -> None:
    async with AsyncExitStack() as idle:
        async with serving(serve) as port:
            stream = await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            await stream.send(SCRAPE)
            await stream.receive()
            await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
            began = time.monotonic()
        assert time.monotonic() - began < 2
