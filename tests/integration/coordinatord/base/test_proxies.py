"""Proxy variables of the environment, with a real server."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinatord.api.webhooks.destinations import open_destinations
from coordinatord.base.http_client import HttpClient, NoResponse, open_http
from coordinatord.chain.rpc.client import open_transport
from tests.support.faults.forward_proxy import ForwardProxy, forward_proxy

pytestmark = pytest.mark.anyio

PEM = Path(__file__).parents[2] / "svc" / "loopback.pem"  # self-signed for 127.0.0.1, with its key
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
    with forward_proxy() as proxy:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield proxy


@asynccontextmanager
async def server(tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # refused before it sent a request
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as listening:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def get(http: HttpClient, url: str) -> bytes:
    async with http("GET", url, {}) as response:
        return await response.read(2)


async def test_http_goes_through_the_proxy(proxy: ForwardProxy) -> None:
    async with server() as url, open_http(connections=1, timeout_s=5) as http:
        assert await get(http, f"{url}/path") == b"ok"
    assert proxy.targets == [f"GET {url}/path"]


async def test_https_is_tunnelled_and_verified_through_the_proxy(proxy: ForwardProxy) -> None:
    presented = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    presented.load_cert_chain(PEM)
    trusting = ssl.create_default_context(cafile=str(PEM))
    async with server(presented) as url:
        async with open_http(connections=1, timeout_s=5, tls=trusting) as http:
            assert await get(http, f"{url}/") == b"ok"
        async with open_http(connections=1, timeout_s=5) as http:
            with pytest.raises(NoResponse):
                await get(http, f"{url}/")
    assert proxy.targets == [f"CONNECT {url.removeprefix('https://')}"] * 2


async def test_no_proxy_names_exceptions(proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "example.org,127.0.0.1")
    async with server() as url, open_http(connections=1, timeout_s=5) as http:
        assert await get(http, url) == b"ok"
    assert proxy.targets == []


async def test_node_is_read_through_the_proxy(proxy: ForwardProxy) -> None:
    async with server() as url, open_transport(f"{url}/", connections=1, timeout_s=5) as post:
        assert await post(b"{}") == (200, b"ok")
    assert proxy.targets == [f"POST {url}/"]


async def test_webhooks_ignore_proxies_by_default(proxy: ForwardProxy) -> None:
    """Through a proxy, webhooks would reach private networks that the connection itself refuses."""
    async with server() as url:
        async with open_destinations(connections=1, allow_private=False) as http:
            with pytest.raises(NoResponse):
                await get(http, url)
        assert proxy.targets == []
        async with open_destinations(connections=1, allow_private=True) as http:
            assert await get(http, f"{url}/hook") == b"ok"
        assert proxy.targets == [f"GET {url}/hook"]
