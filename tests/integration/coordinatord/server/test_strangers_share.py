"""Limits of what one stranger can occupy of a server: memory for uploads, and connections."""

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import anyio
import pytest

from coordinatord.http.server.connection import Timeouts
from coordinatord.http.server.connections import ConnectionLimits
from coordinatord.http.uploads import INITIAL_UPLOAD_MEMORY_BYTES
from devnet.ports import LOOPBACK
from tests.integration.coordinatord.server.serving import Raw, Served, serving, uploading

pytestmark = pytest.mark.anyio

STRANGERS = 3000  # connections from one machine
_BESIDES = 500  # descriptors for other uses
PATIENT = Timeouts()

FORM = (
    b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n%s\r\n--b--\r\n'
)


def upload(caller: str, wallet: str, declared: int | None = None, content: bytes = b"{}") -> bytes:
    """Send a whole upload. With `declared`, send only its head and the first bytes of its form."""
    form = FORM % content
    head = (
        f"POST /upload HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {caller}\r\nauthorization: Bearer {wallet}\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {declared or len(form)}\r\n\r\n"
    )
    return head.encode() + (form[:60] if declared is not None else form)


async def status(client: Raw) -> int:
    """Return the status of the next response."""
    received = b""
    with anyio.fail_after(60):
        while not received.endswith(b"}"):
            received += await client.stream.receive()
    return int(received[9:12])


async def test_silent_uploads_leave_room_for_an_honest_one() -> None:
    """Sixteen heads declare sixteen MiB each, while memory holds four of those."""
    limits = uploading(16 * INITIAL_UPLOAD_MEMORY_BYTES + (8 << 20))
    async with serving(PATIENT, uploads=limits) as served, AsyncExitStack() as connections:
        for n in range(16):
            silent = await connections.enter_async_context(served.connected())
            await silent.send(upload(f"192.0.2.{n // 4}", f"wallet {n // 4}", declared=16 << 20))
        await served.uploads_begun(16)
        honest = await connections.enter_async_context(served.connected())
        await honest.send(upload("203.0.113.9", "honest", content=b"x" * (4 << 20)))
        assert await status(honest) == 200
    assert served.uploaded == 4 << 20


async def test_silent_upload_is_408_and_frees_its_place() -> None:
    async with serving(PATIENT, uploads=uploading(of_caller=1, silence=0.2)) as served, served.connected() as silent:
        await silent.send(upload("192.0.2.1", "one", declared=1 << 20))
        assert (await silent.rest()).startswith(b"HTTP/1.1 408 ")
        async with served.connected() as client:
            await client.send(upload("192.0.2.1", "one"))
            assert await status(client) == 200


async def test_uploads_of_one_ipv6_network_count_together() -> None:
    async with serving(PATIENT, uploads=uploading(of_caller=1)) as served, served.connected() as silent:
        await silent.send(upload("2001:db8:1:2::1", "one", declared=1 << 20))
        await served.uploads_begun(1)
        for address, expected in (("2001:db8:1:2:ffff::2", 429), ("2001:db8:1:3::1", 200)):
            async with served.connected() as client:
                await client.send(upload(address, address))
                assert await status(client) == expected


@pytest.fixture
def strangers() -> Iterator[int]:
    """How many connections this machine can make to a server in this process, two descriptors each; a thousand or so
    at the least."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * STRANGERS + _BESIDES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    yield min(STRANGERS, (max(soft, allowed) - _BESIDES) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle_connections(port: int, many: int, first: str) -> list[socket.socket]:
    """Open connections from one loopback address. Each has started a head."""
    made = []
    for _ in range(many):
        stranger = socket.socket()
        stranger.bind((first, 0))
        stranger.connect((LOOPBACK, port))
        stranger.send(b"GET /hello HTTP/1.1\r\nx-a: ")
        made.append(stranger)
    return made


async def test_idle_connections_do_not_delay_a_probe(strangers: int) -> None:
    assert strangers >= 1000
    room = ConnectionLimits(total=4096, per_caller=64)
    async with serving(PATIENT, room=room, grace=0) as served:
        attack = anyio.to_thread.run_sync(idle_connections, served.port, strangers, "127.0.0.9")
        probes: list[float] = []
        made: list[socket.socket] = []

        async def attacked() -> None:
            made.extend(await attack)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attacked)
            while True:
                began = time.monotonic()
                await served.hello()
                probes.append(time.monotonic() - began)
                await anyio.sleep(0.01)
        await served.hello()
        assert await ended(made) == strangers - 64
        assert max(probes) < 2, sorted(probes)[-5:]
        for stranger in made:
            stranger.close()


async def ended(connections: list[socket.socket]) -> int:
    """Count the connections that the server has closed, once the number is stable."""
    closed: set[socket.socket] = set()
    with anyio.fail_after(60):
        while True:
            before = len(closed)
            await anyio.sleep(0.2)
            for connection in connections:
                if connection not in closed and is_closed(connection):
                    closed.add(connection)
            if closed and len(closed) == before:
                return before


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_new_connection_replaces_its_callers_oldest_idle_one() -> None:
    async with (
        serving(PATIENT, room=ConnectionLimits(total=100, per_caller=2)) as served,
        AsyncExitStack() as connections,
    ):
        first, second, third = [await connections.enter_async_context(served.connected()) for _ in range(3)]
        assert await first.rest() == b""
        await begin_wait(served, second)
        fourth = await connections.enter_async_context(served.connected())
        assert await third.rest() == b""  # although the second is older, because it has a request
        served.released.set()
        assert (await second.until(b"{}")).startswith(b"HTTP/1.1 200 ")
        await fourth.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await fourth.until(b"{}")).startswith(b"HTTP/1.1 200 ")


async def test_caller_with_only_busy_connections_gets_no_more() -> None:
    async with serving(PATIENT, room=ConnectionLimits(total=100, per_caller=1)) as served, served.connected() as busy:
        await begin_wait(served, busy)
        async with served.connected() as refused:
            assert await refused.rest() in (b"", b"<reset>")
        served.released.set()
        await busy.until(b"{}")
        await served.hello()


async def test_full_server_closes_the_oldest_idle_connection() -> None:
    room = ConnectionLimits(total=2, per_caller=2, proxies=frozenset({"127.0.0.8"}))
    async with serving(PATIENT, room=room) as served:
        with socket.socket() as proxy, socket.socket() as stranger:
            for client, address in ((proxy, "127.0.0.8"), (stranger, "127.0.0.9")):
                client.bind((address, 0))
                await anyio.to_thread.run_sync(client.connect, (LOOPBACK, served.port))
            await served.hello()
            assert is_closed(stranger)
            assert not is_closed(proxy)


async def begin_wait(served: Served, client: Raw) -> None:
    await client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
    await served.waiting.wait()
