"""Run the transport against a server that sends the bytes that a test specifies. The scripted node answers in the
envelopes of a real node."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.abc
import httpx
import pytest

from coordinatord.base.http_client import NoResponse
from coordinatord.chain.rpc.client import open_transport
from devnet.anvil import Anvil
from tests.support.fakes.chain import FakeChain

Serve = Callable[[anyio.abc.SocketStream], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    async def connected(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await serve(stream)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, connected)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - anyio's `extra`, not Django's
        yield f"http://127.0.0.1:{port}/"
        tasks.cancel_scope.cancel()


def saying(answer: bytes, heard: list[bytes] | None = None) -> Serve:
    """Answer each request of a connection with these bytes. Close the connection after an incomplete response."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        while True:
            try:
                request = await stream.receive()
            except anyio.EndOfStream:
                return
            if heard is not None:
                heard.append(request)
            await stream.send(answer)
            if not answer.endswith(b"{}"):
                return

    return serve


async def silent(stream: anyio.abc.SocketStream) -> None:
    await stream.receive()
    await anyio.sleep_forever()


async def halting(stream: anyio.abc.SocketStream) -> None:
    await stream.receive()
    await stream.send(OK + b"\r\n{")
    await anyio.sleep_forever()


async def deaf(stream: anyio.abc.SocketStream) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (OK + b"\r\n{}", 200),
        (OK.replace(b"200 OK", b"503 Busy") + b"\r\n{}", 503),
        (OK.replace(b"200 OK", b"307 Elsewhere") + b"location: http://127.0.0.1:1/\r\n\r\n{}", 307),
        (OK + b"content-encoding: identity\r\n\r\n{}", 200),
    ],
    ids=["answer", "error", "redirect is not followed", "not encoded, and says so"],
)
async def test_status_and_body_come_as_the_node_sent_them(answer: bytes, status: int) -> None:
    async with serving(saying(answer)) as url, open_transport(url, connections=1, timeout_s=5) as post:
        assert await post(b"[]") == (status, b"{}")


@pytest.mark.parametrize(
    "serve",
    [silent, halting, saying(OK + b"\r\n{"), saying(b""), saying(b"SSH-2.0-x\r\n\r\n")],
    ids=["silent", "halting", "cut off", "hung up", "not HTTP"],
)
async def test_anything_but_a_whole_answer_is_none(serve: Serve) -> None:
    async with serving(serve) as url, open_transport(url, connections=1, timeout_s=0.1) as post:
        with pytest.raises(NoResponse):
            await post(b"[]")


async def test_a_node_that_takes_no_bytes_gives_no_answer() -> None:
    async with serving(deaf) as url, open_transport(url, connections=1, timeout_s=0.1) as post:
        with pytest.raises(NoResponse):
            await post(bytes(20_000_000))


async def test_nobody_listening_is_no_answer() -> None:
    async with serving(silent) as url:
        pass
    async with open_transport(url, connections=1, timeout_s=5) as post:
        with pytest.raises(NoResponse):
            await post(b"[]")


async def test_a_slow_answer_is_awaited_while_bytes_come() -> None:
    async def slow(stream: anyio.abc.SocketStream) -> None:
        await stream.receive()
        await stream.send(OK.replace(b"length: 2", b"length: 20") + b"\r\n")
        for _ in range(20):
            await anyio.sleep(0.05)
            await stream.send(b" ")

    async with serving(slow) as url, open_transport(url, connections=1, timeout_s=0.2) as post:
        assert await post(b"[]") == (200, b" " * 20)


async def test_a_connection_is_kept_and_cookies_are_not() -> None:
    connections = 0
    heard: list[bytes] = []

    async def counted(stream: anyio.abc.SocketStream) -> None:
        nonlocal connections
        connections += 1
        await saying(OK + b"set-cookie: a=b\r\n\r\n{}", heard)(stream)

    async with serving(counted) as url, open_transport(url, connections=2, timeout_s=5) as post:
        for _ in range(3):
            await post(b"[]")
    assert connections == 1
    assert not any(b"cookie" in request.lower() for request in heard)


async def test_a_request_given_up_takes_no_connection_from_the_next() -> None:
    asked = anyio.Event()

    async def silent_at_first(stream: anyio.abc.SocketStream) -> None:
        if not asked.is_set():
            asked.set()
            await silent(stream)
        await saying(OK + b"\r\n{}")(stream)

    async with serving(silent_at_first) as url, open_transport(url, connections=1, timeout_s=5) as post:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, b"[]")
            await asked.wait()
            tasks.cancel_scope.cancel()
        assert await post(b"[]") == (200, b"{}")


KNOWN: Final = {"jsonrpc": "2.0", "id": 7, "method": "eth_chainId", "params": []}
UNKNOWN: Final = {"jsonrpc": "2.0", "id": 3, "method": "eth_nothing", "params": []}


def envelope(answers: Any) -> Any:
    """Return the answer without its values: the members of each object, its version and its id."""
    if isinstance(answers, list):
        return sorted(map(envelope, answers))
    return answers["id"], answers["jsonrpc"], sorted(answers), answers.get("error", {}).get("code", 0)


@pytest.mark.parametrize("request_", [KNOWN, UNKNOWN, [KNOWN, UNKNOWN], [KNOWN]])
async def test_scripted_node_answers_like_anvil(request_: Any, anvil: Anvil) -> None:
    body = json.dumps(request_).encode()
    async with httpx.AsyncClient(trust_env=False) as http:
        headers = {"content-type": "application/json"}
        real = (await http.post(anvil.rpc_url, content=body, headers=headers)).json()
    status, scripted = await FakeChain().post(body)
    assert (status, envelope(json.loads(scripted))) == (200, envelope(real))
