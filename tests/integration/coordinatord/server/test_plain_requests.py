"""Plain requests, held against the same requests on connections where h11 reads all of them."""

import contextlib
import re
from functools import partial
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import pytest

from coordinatord.http.server import connection
from coordinatord.http.server.connection import Timeouts
from coordinatord.http.server.serving import listening_socket, serve_until
from devnet.ports import LOOPBACK, pick_free
from tests.integration.coordinatord.server.serving import Raw, serving

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"2")
ANSWERS: dict[str, list[tuple[int, list[tuple[bytes, bytes]], list[bytes]]]] = {
    "of a length": [(200, [(b"x-a", b" b "), LENGTH], [b"{}"])],
    "of a length in pieces": [(201, [LENGTH], [b"{", b"", b"}"])],
    "in pieces of no length": [(200, [(b"content-type", b"text/event-stream")], [b"a", b"", b"b" * 100_000])],
    "without content": [(204, [], [b""])],
    "of what is known": [(304, [(b"etag", b'"1"'), LENGTH], [b"{}"])],
    "of no length and no body": [(200, [], [])],
    "that is large": [(200, [(b"content-length", b"100000")], [b"x" * 100_000])],
    "that closes": [(408, [(b"connection", b"close"), LENGTH], [b"{}"])],
    "that is none": [],
    "that is too short": [(200, [(b"content-length", b"3")], [b"{}"])],
    "that is too long": [(200, [(b"content-length", b"1")], [b"{}"])],
    "with a header on two lines": [(200, [(b"x-a", b"b\r\nx-c: d"), LENGTH], [b"{}"])],
    "with a header that has no name": [(200, [(b"", b"b"), LENGTH], [b"{}"])],
    "that begins twice": [(200, [LENGTH], [b"{"]), (200, [LENGTH], [b"}"])],
}
REQUESTS = {
    "GET": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n",
    "POST that nobody reads": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde",
    "POST of a body that never comes": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabc",
}
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
_CHANGING = re.compile(rb"(date|x-request-id): [^\r]*", re.IGNORECASE)


async def _told(answers: list[tuple[int, list[tuple[bytes, bytes]], list[bytes]]], request: bytes) -> bytes:
    """All that a connection says to this request, and to a last one that it may take after it."""
    stop, told = anyio.Event(), b""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for status, headers, pieces in [(200, [LENGTH], [b"ok"])] if scope["path"] == "/last" else answers:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    listening = listening_socket(port := pick_free(), LOOPBACK)
    listening.listen()
    async with anyio.create_task_group() as tasks:

        async def serve() -> None:
            await serve_until(app, listening, stop.wait, grace_seconds=5)

        tasks.start_soon(serve)
        try:
            with anyio.fail_after(10):
                async with await anyio.connect_tcp(LOOPBACK, port) as stream:
                    await stream.send(request)
                    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                        told = await stream.receive()
                        await stream.send(LAST)
                    told += await Raw(stream).rest()
        finally:
            stop.set()
    return _CHANGING.sub(rb"\1: ", told.removesuffix(b"<reset>"))


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS.keys())
async def test_answer_is_written_as_h11_writes_it(
    answers: list[tuple[int, list[tuple[bytes, bytes]], list[bytes]]], request_: bytes
) -> None:
    with mock.patch.object(connection, "plain_request", return_value=None):
        by_h11 = await _told(answers, request_)
    assert await _told(answers, request_) == by_h11


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "by h11"])
async def test_answer_before_the_body_is_there_says_that_no_other_request_is_taken(*, plain: bool) -> None:
    """A client that kept the connection would send its next request in vain: the body's rest is never read."""
    request = REQUESTS["POST of a body that never comes"]
    with contextlib.nullcontext() if plain else mock.patch.object(connection, "plain_request", return_value=None):
        told = await _told([(401, [LENGTH], [b"{}"])], request)
    assert told.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in told.lower()
    assert told.endswith(b"{}")


async def test_connection_that_said_what_is_not_plain_is_plain_again_after_it() -> None:
    odd = b"POST /take HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    plain = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
    async with serving(Timeouts()) as served, served.connected() as client:
        with mock.patch.object(connection, "Http11", side_effect=connection.Http11) as by_h11:
            for request, times in ((plain, 0), (odd, 1), (plain, 1), (plain[:20], 2)):
                await client.send(request)
                if request != plain[:20]:
                    await client.until(b"{}")
                else:
                    await client.send(plain[20:])
                    await client.until(b"{}")
                assert by_h11.call_count == times
    assert served.paths == ["/hello", "/take", "/hello", "/hello"]


async def test_caller_that_leaves_is_told_to_a_handler_that_waits_though_it_asked_again() -> None:
    gone = anyio.Event()

    async def app(_: Any, receive: Any, __: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    listening = listening_socket(port := pick_free(), LOOPBACK)
    listening.listen()
    async with anyio.create_task_group() as tasks:
        stop = anyio.Event()

        async def serve() -> None:
            await serve_until(app, listening, stop.wait, grace_seconds=5)

        tasks.start_soon(serve)
        async with await anyio.connect_tcp(LOOPBACK, port) as stream:
            await stream.send(REQUESTS["GET"] * 2)
        with anyio.fail_after(5):
            await gone.wait()
        stop.set()


async def test_stream_of_small_pieces_that_nobody_reads_is_ended_before_much_is_held() -> None:
    sent, ended = 0, anyio.Event()

    async def app(_: Any, __: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(1000), "more_body": True})
                sent += 1000
                await anyio.lowlevel.checkpoint()
        finally:
            ended.set()

    listening = listening_socket(port := pick_free(), LOOPBACK)
    listening.listen()
    async with anyio.create_task_group() as tasks:
        hasty = Timeouts(grace=0.3, least_rate=1 << 30)
        tasks.start_soon(partial(serve_until, app, listening, ended.wait, grace_seconds=5, timeouts=hasty))
        async with await anyio.connect_tcp(LOOPBACK, port) as stream:
            await stream.send(REQUESTS["GET"])
            with anyio.fail_after(30):
                await ended.wait()
    assert sent < 64 << 20  # what the buffers of two sockets take
