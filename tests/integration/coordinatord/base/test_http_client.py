"""Requests to slow, stuck or stopped servers over kept connections, and through proxies of the environment."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from coordinatord.api.webhooks.destinations import open_destinations
from coordinatord.base.http_client import HttpClient, NoResponse, open_http, system_tls_context
from coordinatord.chain.rpc.client import open_transport
from tests.support.faults.forward_proxy import ForwardProxy, forward_proxy

MIB = 1 << 20
CONTENT = [bytes([n]) * MIB for n in range(32)]
SIZE = len(CONTENT) * MIB
HEADERS = {"content-length": str(SIZE)}
PEM = Path(__file__).parents[2] / "svc" / "loopback.pem"  # self-signed for 127.0.0.1, with its key
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, limit=MIB, ssl=tls)
    async with listening:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError):  # refused before it sent a request
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()


async def body_of(reader: asyncio.StreamReader, pause: float = 0.0, size: int = SIZE) -> bytes:
    await reader.readuntil(b"\r\n\r\n")
    body = bytearray()
    while len(body) < size:
        body += await reader.readexactly(MIB)
        await asyncio.sleep(pause)
    return bytes(body)


async def test_body_may_take_any_time_as_long_as_it_moves() -> None:
    """The upload takes three times the timeout in total, but never stops for that long."""
    content = CONTENT * 2

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await body_of(reader, pause=0.08, size=2 * SIZE) == b"".join(content)
        writer.write(OK)

    async with server(slow) as url, open_http(connections=1, timeout_s=1.5) as http:
        with anyio.fail_after(60):
            async with http("PUT", url, {"content-length": str(2 * SIZE)}, content) as response:
                assert (response.status, await response.read(2)) == (200, b"ok")


async def test_server_that_takes_nothing_is_given_up() -> None:
    released = asyncio.Event()

    async def stuck(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await released.wait()

    async with server(stuck) as url, open_http(connections=1, timeout_s=0.1) as http:
        with anyio.fail_after(60), pytest.raises(NoResponse):
            async with http("PUT", url, HEADERS, CONTENT):
                pass
        released.set()


async def test_request_on_a_stale_connection_is_retried() -> None:
    bodies: list[bytes] = []

    async def once_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await body_of(reader))
        writer.write(OK)
        await writer.drain()
        await reader.read(1)  # the next request begins, and the connection closes

    async with server(once_each) as url, open_http(connections=1, timeout_s=5) as http:
        for _ in range(2):
            async with http("PUT", url, HEADERS, CONTENT) as response:
                assert await response.read(2) == b"ok"
    assert bodies == [b"".join(CONTENT)] * 2


@pytest.fixture
def system_trust(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Replace the system's trusted certificates, as OpenSSL finds them."""

    def trust(file: str) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", file)
        monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")
        system_tls_context.cache_clear()

    yield trust
    system_tls_context.cache_clear()


async def test_https_is_verified_by_the_certificates_of_the_system(system_trust: Callable[[str], None]) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(PEM)
    async with server(answer, tls) as url, open_http(connections=1, timeout_s=5) as http:
        system_trust(os.devnull)
        with pytest.raises(NoResponse, match="Certificate"):
            async with http("GET", url, {}):
                pytest.fail("nobody vouches for it")
        system_trust(str(PEM))
        async with http("GET", url, {}) as response:
            assert (response.status, await response.read(2)) == (200, b"ok")


async def test_netrc_is_not_read_without_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("no_proxy", "*")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login name password word\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with server(serve) as url, open_http(connections=1, timeout_s=5) as http, http("GET", url, {}) as response:
        assert await response.read(2) == b"ok"
    assert b"authorization" not in heads[0].lower()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
    with forward_proxy() as proxy:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield proxy


async def get(http: HttpClient, url: str) -> bytes:
    async with http("GET", url, {}) as response:
        return await response.read(2)


async def test_http_goes_through_the_proxy(proxy: ForwardProxy) -> None:
    async with server(answer) as url, open_http(connections=1, timeout_s=5) as http:
        assert await get(http, f"{url}path") == b"ok"
    assert proxy.targets == [f"GET {url}path"]


async def test_https_is_tunnelled_and_verified_through_the_proxy(proxy: ForwardProxy) -> None:
    presented = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    presented.load_cert_chain(PEM)
    trusting = ssl.create_default_context(cafile=str(PEM))
    async with server(answer, presented) as url:
        async with open_http(connections=1, timeout_s=5, tls=trusting) as http:
            assert await get(http, url) == b"ok"
        async with open_http(connections=1, timeout_s=5) as http:
            with pytest.raises(NoResponse):
                await get(http, url)
    assert proxy.targets == [f"CONNECT {url.removeprefix('https://').rstrip('/')}"] * 2


async def test_no_proxy_names_exceptions(proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org,127.0.0.1")
    async with server(answer) as url, open_http(connections=1, timeout_s=5) as http:
        assert await get(http, url) == b"ok"
    assert proxy.targets == []


async def test_node_is_read_through_the_proxy(proxy: ForwardProxy) -> None:
    async with server(answer) as url, open_transport(url, connections=1, timeout_s=5) as post:
        assert await post(b"{}") == (200, b"ok")
    assert proxy.targets == [f"POST {url}"]


async def test_webhooks_ignore_proxies_by_default(proxy: ForwardProxy) -> None:
    """Through a proxy, webhooks would reach private networks that the connection itself refuses."""
    async with server(answer) as url:
        async with open_destinations(connections=1, allow_private=False) as http:
            with pytest.raises(NoResponse):
                await get(http, url)
        assert proxy.targets == []
        async with open_destinations(connections=1, allow_private=True) as http:
            assert await get(http, f"{url}hook") == b"ok"
        assert proxy.targets == [f"GET {url}hook"]
