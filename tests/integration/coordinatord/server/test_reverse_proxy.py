"""The documented nginx before the server."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from coordinatord.http.server.connection import Timeouts
from devnet.ports import LOOPBACK
from tests.integration.coordinatord.server.nginx import of_one_connection_a_caller, running
from tests.integration.coordinatord.server.serving import Raw, Served, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(Timeouts()) as served:
        yield served


@pytest.fixture
def proxy(served: Served, tmp_path: Path) -> Iterator[int]:
    yield from running(served.port, tmp_path, lambda text: text)


@pytest.fixture
def strict_proxy(served: Served, tmp_path: Path) -> Iterator[int]:
    yield from running(served.port, tmp_path, of_one_connection_a_caller)


async def told(port: int, message: bytes) -> bytes:
    async with await anyio.connect_tcp(LOOPBACK, port) as stream:
        await stream.send(message)
        return await Raw(stream).rest()


async def test_honest_request_passes(served: Served, proxy: int) -> None:
    answer = await told(proxy, b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"{}")
    assert served.paths == ["/hello"]


async def test_incomplete_requests_never_reach_the_coordinator(served: Served, proxy: int) -> None:
    assert not (await told(proxy, b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: ")).startswith(b"HTTP/1.1 200")
    stalled = b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
    assert not (await told(proxy, stalled)).startswith(b"HTTP/1.1 200")
    assert served.paths == []


async def test_message_of_two_lengths_smuggles_nothing_past_the_proxy(served: Served, proxy: int) -> None:
    message = (
        b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 36\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    await told(proxy, message)
    assert "/hello" not in served.paths


async def test_upgrade_to_h2c_is_not_passed_on(served: Served, proxy: int) -> None:
    asked = b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n"
    assert (await told(proxy, asked)).startswith(b"HTTP/1.1 200 ")
    assert served.paths == ["/hello"]


async def test_addresses_of_one_ipv6_network_are_one_caller(served: Served, strict_proxy: int) -> None:
    def get(path: str, address: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nhost: x\r\nx-real: {address}\r\nconnection: close\r\n\r\n".encode()

    async with await anyio.connect_tcp(LOOPBACK, strict_proxy) as busy:
        await busy.send(get("/wait", "2001:db8:1:2::1"))
        await served.waiting.wait()
        same = await told(strict_proxy, get("/hello", "2001:db8:1:2:ffff::2"))
        other = await told(strict_proxy, get("/hello", "2001:db8:1:3::1"))
        served.released.set()
    assert (same[9:12], other[9:12]) == (b"429", b"200")
