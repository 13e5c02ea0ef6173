"""The operators' port survives a lack of file descriptors and idle connections, on the event loops of both daemons."""

import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
import structlog.testing

from common.daemon import metrics_server
from common.daemon.metrics_server import PageAnswer, PageServer, open_pages

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def serving() -> AsyncIterator[PageServer]:
    page = PageAnswer(b"200 OK", b"page")
    async with (
        open_pages("127.0.0.1", 0, lambda _method, _path: page, "PORT") as server,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(server.serve)
        yield server
        tasks.cancel_scope.cancel()


async def asked(port: int) -> bytes:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        return await stream.receive()


async def test_page_is_served_after_descriptors_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for a descriptor in its own loop: its task does not fail."""
    monkeypatch.setattr(metrics_server, "_ACCEPT_RETRY_S", 0.05)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_pages("127.0.0.1", 0, lambda _method, _path: PageAnswer(b"200 OK", b"well"), "PORT") as server:
        with socket.socket() as client, structlog.testing.capture_logs() as logs:
            client.setblocking(False)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                await anyio.wait_all_tasks_blocked()
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
                try:
                    client.connect_ex(("127.0.0.1", server.port))
                    with anyio.fail_after(10):
                        while not logs:  # noqa: ASYNC110 - a log line has no event
                            await anyio.sleep(0.01)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                assert logs[0]["event"] == "connection not accepted"
                assert "Too many open files" in logs[0]["reason"]
                with anyio.fail_after(10):
                    await anyio.wait_writable(client)
                    client.send(b"GET /metrics HTTP/1.1\r\n\r\n")
                    await anyio.wait_readable(client)
                assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
                tasks.cancel_scope.cancel()


async def test_connection_beyond_the_maximum_is_closed_at_once() -> None:
    async with serving() as server, AsyncExitStack() as idle:
        for _ in range(64):
            await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", server.port))
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)), anyio.fail_after(2):
            await asked(server.port)


async def test_page_answers_again_once_idle_connections_are_closed() -> None:
    async with serving() as server:
        async with AsyncExitStack() as idle:
            for _ in range(100):
                await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", server.port))
        with anyio.fail_after(2):
            while True:
                try:
                    assert b"200 OK" in await asked(server.port)
                    return
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    await anyio.sleep(0.01)
