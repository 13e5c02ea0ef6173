"""Responses to a client that decompress to any size, or never end."""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from svc.client import Client
from svc.core.retries import RetryPolicy
from svc.errors import ConnectionFailed, InternalError, NodeFailed, ResultUnreadable
from svc.wire import gateways
from svc.wire.answers import MAX_ANSWER_BYTES
from svc.wire.json_rpc import Node
from tests.support.faults.bomb_server import BombServer, bomb_server, flat_memory

NAMED = r"content encoding gzip, gzip"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[BombServer]:
    with bomb_server() as server:
        yield server


@pytest.fixture
async def client(server: BombServer) -> AsyncIterator[Client]:
    async with Client(server.url, gateways=[server.url], retries=RetryPolicy(max_retries=0), environment={}) as client:
        yield client


@pytest.mark.parametrize("status", [200, 400])
async def test_encoded_coordinator_response_is_refused_unread(server: BombServer, client: Client, status: int) -> None:
    server.status = status
    with flat_memory(), pytest.raises(InternalError, match=NAMED):
        await client.chain()
    assert server.asked_for_no_encoding()


async def test_encoded_proxy_response_is_left_unread(server: BombServer, client: Client) -> None:
    server.status = 503
    with flat_memory(), pytest.raises(ConnectionFailed, match="a proxy answered 503"):
        await client.chain()


async def test_endless_coordinator_response_is_cut_at_the_limit(server: BombServer, client: Client) -> None:
    server.plain = b"[" + b" " * MAX_ANSWER_BYTES
    with pytest.raises(InternalError, match="longer than 16777216 bytes"):
        await client.chain()


async def test_file_that_comes_encoded_is_refused_unread(server: BombServer, client: Client) -> None:
    with flat_memory(), pytest.raises(InternalError, match=NAMED):
        async with client._account.transport.stream_pieces("/v1/files/x/content", {}) as pieces:
            assert [piece async for piece in pieces]
    assert server.asked_for_no_encoding()


async def _read(client: Client) -> bytes:
    return bytes(await client._account.checked_reader.read("bafyx", bytearray, bytearray.extend, lambda _: None))


@pytest.mark.parametrize("redirects", [0, 2])
async def test_encoded_gateway_content_is_refused_unread(server: BombServer, client: Client, redirects: int) -> None:
    server.redirects = redirects
    with flat_memory(), pytest.raises(ResultUnreadable, match=NAMED) as refused:
        await _read(client)
    assert refused.value.code == "gateway_status"
    assert len(server.heads) == redirects + 1
    assert server.asked_for_no_encoding()


async def test_redirects_are_followed_and_their_bodies_left_alone(server: BombServer, client: Client) -> None:
    server.redirects, server.plain = 3, b"there"
    with flat_memory():
        assert await _read(client) == b"there"


async def test_redirects_without_end_are_given_up(server: BombServer, client: Client) -> None:
    server.redirects = 100
    with pytest.raises(ResultUnreadable, match="redirects"):
        await _read(client)
    assert len(server.heads) < 10


async def test_content_is_read_up_to_its_limit_and_no_further(
    server: BombServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "MAX_CONTENT_BYTES", 1 << 20)
    server.plain = bytes((1 << 20) + 1)
    with pytest.raises(ResultUnreadable, match="longer than 1048576 bytes"):
        await _read(client)


async def test_nodes_encoded_answer_is_refused_unread(server: BombServer) -> None:
    async with httpx.AsyncClient() as http:
        with flat_memory(), pytest.raises(NodeFailed, match=NAMED):
            await Node(server.url, http).call("eth_chainId")
    assert server.asked_for_no_encoding()
