"""Proxy variables of the environment with a real server, for svc and svcd."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from svc.client import Client
from svc.core.retries import RetryPolicy
from svc.errors import ConnectionFailed
from svc.wire.answers import open_response, read_body
from svc.wire.connections import open_client
from tests.support.faults.bomb_server import BombServer, bomb_server
from tests.support.faults.forward_proxy import ForwardProxy, forward_proxy

PEM = Path(__file__).parents[1] / "loopback.pem"  # self-signed for 127.0.0.1, with its key


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardProxy]:
    with forward_proxy() as proxy:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield proxy


@pytest.fixture
def server() -> Iterator[BombServer]:
    with bomb_server() as server:
        server.plain = b"ok"
        yield server


async def get(url: str) -> bytes:
    async with open_client(timeout=5) as http, open_response(http, "GET", url) as response:
        return await read_body(response)


async def test_http_goes_through_the_proxy(proxy: ForwardProxy, server: BombServer) -> None:
    assert await get(f"{server.url}/path") == b"ok"
    assert proxy.targets == [f"GET {server.url}/path"]


async def test_https_is_tunnelled_and_verified_through_the_proxy(
    proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    presented = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    presented.load_cert_chain(PEM)
    with bomb_server(tls=presented) as server:
        server.plain = b"ok"
        with pytest.raises(httpx.ConnectError):
            await get(server.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        assert await get(server.url) == b"ok"
    assert proxy.targets == [f"CONNECT {server.url.removeprefix('https://')}"] * 2


@pytest.mark.parametrize("exceptions", ["example.org,127.0.0.1", "*"])
async def test_no_proxy_names_exceptions(
    proxy: ForwardProxy, server: BombServer, monkeypatch: pytest.MonkeyPatch, exceptions: str
) -> None:
    monkeypatch.setenv("no_proxy", exceptions)
    assert await get(server.url) == b"ok"
    assert proxy.targets == []


async def test_proxy_of_another_kind_is_refused_with_what_to_set(
    server: BombServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1080")
    with pytest.raises(httpx.ProxyError, match="must be http:// or https:// addresses"):
        await get(server.url)


async def test_client_reads_the_coordinator_through_the_proxy(proxy: ForwardProxy, server: BombServer) -> None:
    server.status, server.plain = 503, b"away"
    async with Client(server.url, retries=RetryPolicy(max_retries=0), environment={}) as client:
        with pytest.raises(ConnectionFailed):
            await client.chain()
    assert proxy.targets == [f"GET {server.url}/evm/chain"]
