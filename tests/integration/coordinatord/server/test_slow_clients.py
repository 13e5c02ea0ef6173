"""Clients that send or read as slowly as possible, and their cost to other clients."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from coordinatord.http.server.connection import Timeouts
from tests.integration.coordinatord.server.serving import LARGE, Raw, Served, serving

pytestmark = pytest.mark.anyio

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


@pytest.mark.parametrize("limit", [{"body_deadline": 0.2}, {"body_silence": 0.2}], ids=["deadline", "silence"])
async def test_stalled_body_is_408_and_ends_the_connection(limit: dict[str, float]) -> None:
    async with serving(PATIENT, **limit) as served, served.connected() as client:  # type: ignore[arg-type] # both are seconds
        await half_a_body(client)
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert answer.count(b"HTTP/1.1 ") == 1


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
