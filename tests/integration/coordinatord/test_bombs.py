"""Responses to a coordinator that decompress to any size, or never end."""

from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from common.address_book import AddressBook
from common.daemon.secrets import Secret
from common.domains import Domains
from coordinatord.api.escrow.handover import OperatorKeys
from coordinatord.api.escrow.peer import FailedPull, Peer
from coordinatord.base.errors import Retryable
from coordinatord.base.http_client import open_http
from coordinatord.chain.rpc import client as transport
from coordinatord.chain.rpc.client import RpcCall, open_rpc
from coordinatord.storage.pins.store import open_pin_store
from devnet.ports import LOOPBACK
from tests.support.faults.bomb_server import BombServer, bomb_server, flat_memory
from tests.unit.coordinatord.environment import ENVIRONMENT

NAMED = r"content encoding gzip, gzip"
SECRET = Secret("s")


@pytest.fixture
def server() -> Iterator[BombServer]:
    with bomb_server() as server:
        yield server


async def test_nodes_encoded_answer_is_none_and_is_left_unread(server: BombServer) -> None:
    async with open_rpc(server.url) as rpc:
        with flat_memory(), pytest.raises(Retryable, match=NAMED) as refused:
            await rpc.call("eth_chainId")
    assert refused.value.kind == "chain_unreachable"
    assert server.asked_for_no_encoding()


async def test_nodes_answer_is_read_up_to_its_limit_and_no_further(
    server: BombServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_MAX_ANSWER_BYTES", 1 << 20)
    server.plain = b"[" + b" " * (1 << 20)
    async with open_rpc(server.url) as rpc:
        with pytest.raises(Retryable, match="longer than 1048576 bytes"):
            await rpc.call("eth_chainId")


@pytest.mark.parametrize("value", [b"{}", b"[]", b'"a"', b"1.5"])
async def test_nodes_answer_of_countless_values_is_not_decoded(server: BombServer, value: bytes) -> None:
    server.plain = b'{"id":1,"result":[' + (value + b",") * 10_000 + b"0]}"
    async with open_rpc(server.url) as rpc:
        with pytest.raises(Retryable, match="more values"):
            await rpc.call("eth_chainId")
        server.plain = b"[" + (value + b",") * 10_000 + b"0]"
        with pytest.raises(Retryable, match="more values"):
            await rpc.batch([RpcCall("eth_chainId")])


async def test_nodes_answer_that_trickles_is_given_up() -> None:
    left = anyio.Event()

    async def trickle(client: SocketStream) -> None:
        async with client:
            await client.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            with suppress(anyio.BrokenResourceError):
                while True:
                    await client.send(b" ")
                    await anyio.sleep(0.02)
        left.set()

    async with await anyio.create_tcp_listener(local_host=LOOPBACK) as node, anyio.create_task_group() as tasks:
        tasks.start_soon(node.serve, trickle)
        port = node.extra_attributes[SocketAttribute.local_port]()
        async with open_rpc(f"http://{LOOPBACK}:{port}", connections=1, timeout_s=0.1) as rpc:
            with pytest.raises(Retryable, match="took longer than"), anyio.fail_after(10):
                await rpc.call("eth_chainId")
        await left.wait()
        tasks.cancel_scope.cancel()


async def test_stores_encoded_answer_is_a_refusal_and_is_left_unread(server: BombServer) -> None:
    async with open_pin_store(server.url, "bucket", SECRET, SECRET, "us-east-1") as pins:
        for content in (b"small", bytes(1 << 20)):
            with flat_memory(), pytest.raises(Retryable, match=NAMED) as refused:
                await pins.put("key", content)
            assert refused.value.code == "store_rejected"
        with flat_memory(), pytest.raises(Retryable, match=NAMED):
            await pins.get("key")
        with flat_memory(), pytest.raises(Retryable, match=NAMED):
            async with pins.read("key") as pieces:
                assert [piece async for piece in pieces]
    assert server.asked_for_no_encoding()


@pytest.mark.timeout(60)  # an endless read blocks the event loop, and with it the loop's own timeouts
async def test_stores_answers_without_a_body_end_each_time(server: BombServer) -> None:
    server.status, server.plain = 204, b""
    async with open_pin_store(server.url, "bucket", SECRET, SECRET, "us-east-1") as pins:
        for _ in range(3):
            await pins.delete("key")
    assert len(server.heads) == 3


@pytest.mark.parametrize("status", [200, 403])
async def test_peers_encoded_answer_brings_no_keys_and_is_left_unread(status: int) -> None:
    domains = Domains.of(AddressBook.parse(ENVIRONMENT["ADDRESSES_JSON"].encode()))
    operators = OperatorKeys.from_keys(domains, (Secret("0a" * 32),))
    with bomb_server(status) as server:
        async with open_http(connections=1, timeout_s=10) as http:
            with flat_memory():
                pulled = await Peer(http, server.url, operators, 3, lambda: 1_800_000_000).pull_keys()
        assert isinstance(pulled, FailedPull)
        assert "content encoding gzip, gzip" in pulled.reason
        assert server.asked_for_no_encoding()
