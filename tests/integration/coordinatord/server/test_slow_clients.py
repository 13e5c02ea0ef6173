"""Clients that send or read slowly or occupy connections, and their cost to other clients."""

import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import anyio
import pytest

from coordinatord.http.server.connection import Timeouts
from coordinatord.http.server.connections import ConnectionLimits
from devnet.ports import LOOPBACK
from tests.integration.coordinatord.server.serving import LARGE, Raw, Served, serving

MANY = 300
PATIENT = Timeouts(idle_s=600, grace_s=600)
HASTY = Timeouts(idle_s=0.3, grace_s=0.3, min_bytes_per_s=1 << 30)


async def half_a_head(client: Raw) -> None:
    await client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: ")


async def half_a_body(client: Raw) -> None:
    await client.send(b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")


async def no_reading(client: Raw) -> None:
    await client.send(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")


Attack = Callable[[Raw], Awaitable[None]]
ATTACKS = [half_a_head, half_a_body, no_reading]


async def attacked(served: Served, clients: anyio.abc.TaskGroup, attack: Attack, many: int) -> None:
    """Wait until this many clients have started."""
    begun = 0
    all_begun = anyio.Event()

    async def one() -> None:
        nonlocal begun
        async with served.connected() as client:
            await attack(client)
            begun += 1
            if begun == many:
                all_begun.set()
            await anyio.sleep_forever()

    for _ in range(many):
        clients.start_soon(one)
    await all_begun.wait()


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS)
async def test_slow_clients_do_not_delay_an_honest_one(attack: Attack) -> None:
    async with serving(PATIENT, grace=0) as served, anyio.create_task_group() as clients:
        await attacked(served, clients, attack, MANY if attack is not no_reading else MANY // 10)
        with anyio.fail_after(60):  # waiting for the slow clients would take until their timeout
            for _ in range(20):
                await served.hello()
        clients.cancel_scope.cancel()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_slow_clients_delay_shutdown_only_by_its_grace(attack: Attack) -> None:
    async with serving(PATIENT, grace=0.3) as served, anyio.create_task_group() as clients:
        await attacked(served, clients, attack, 20)
        served.stop.set()
        with anyio.fail_after(5):
            await served.stopped.wait()
        clients.cancel_scope.cancel()


async def test_head_that_does_not_come_ends_the_connection() -> None:
    async with serving(HASTY) as served, served.connected() as client:
        await half_a_head(client)
        assert await client.rest() == b""


async def test_connection_without_a_further_request_is_ended() -> None:
    async with serving(HASTY) as served, served.connected() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.rest()).endswith(b"{}")


async def test_answer_that_is_not_read_is_dropped_with_its_connection() -> None:
    async with serving(HASTY) as served, served.connected() as client:
        await no_reading(client)
        await anyio.sleep(1)  # the slow client's delay
        received = await client.rest()
    assert len(received) < len(LARGE)


async def test_answer_that_is_read_in_time_arrives_whole() -> None:
    async with serving(PATIENT) as served, served.connected() as client:
        await client.send(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        _, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert body == LARGE


async def test_client_sending_a_refused_body_sees_the_refusal() -> None:
    async with serving(PATIENT) as served, served.connected() as client:
        await client.send(b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n")

        async def pour() -> None:
            try:
                for _ in range(100):
                    await client.send(bytes(80_000))
            except anyio.BrokenResourceError:
                return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pour)
            assert (await client.rest()).startswith(b"HTTP/1.1 413 ")


async def test_request_in_flight_is_answered_after_stop() -> None:
    async with serving(PATIENT) as served, served.connected() as waiting, served.connected() as idle:
        await waiting.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await served.waiting.wait()
        served.stop.set()
        assert await idle.rest() == b""
        with pytest.raises(OSError, match="connect"):
            await served.hello()
        served.released.set()
        answer = await waiting.rest()
    assert answer.endswith(b"{}")
    assert b"\r\nconnection: close" in answer.lower()


STRANGERS = 3000  # connections from one machine
_BESIDES = 500  # descriptors for other uses


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
