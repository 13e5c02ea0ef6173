import resource
import socket

import anyio
import pytest
import structlog.testing

from common.daemon import metrics_server
from common.daemon.metrics_server import PageAnswer, open_pages

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_page_is_served_after_descriptors_ran_out(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
