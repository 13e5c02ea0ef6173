"""Compare the server's responses with those that h11 writes for the same application messages."""

import contextlib
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import h11
import pytest

from coordinatord.http.server.connection import MAX_UNREAD_BYTES, Timeouts
from devnet.ports import LOOPBACK
from tests.integration.coordinatord.server.serving import Raw, serving, serving_app

Answer = tuple[int, list[tuple[bytes, bytes]], list[bytes]]
LENGTH = (b"content-length", b"2")
ANSWERS: dict[str, Answer] = {
    "of a length": (200, [(b"x-a", b" b "), LENGTH], [b"{}"]),
    "of a length in pieces": (201, [LENGTH], [b"{", b"", b"}"]),
    "in pieces of no length": (200, [(b"content-type", b"text/event-stream")], [b"a", b"", b"b" * 100_000]),
    "without content": (204, [], [b""]),
    "of what is known": (304, [(b"etag", b'"1"'), LENGTH], [b"{}"]),
    "of no length and no body": (200, [], []),
    "that is large": (200, [(b"content-length", b"100000")], [b"x" * 100_000]),
    "that closes": (408, [(b"connection", b"close"), LENGTH], [b"{}"]),
}
INVALID: dict[str, list[Answer]] = {
    "that is too short": [(200, [(b"content-length", b"3")], [b"{}"])],
    "that is too long": [(200, [(b"content-length", b"1")], [b"{}"])],
    "with a header on two lines": [(200, [(b"x-a", b"b\r\nx-c: d"), LENGTH], [b"{}"])],
    "with a header that has no name": [(200, [(b"", b"b"), LENGTH], [b"{}"])],
    "with a coding": [(200, [(b"transfer-encoding", b"chunked")], [b"{}"])],
    "that begins twice": [(200, [LENGTH], [b"{"]), (200, [LENGTH], [b"}"])],
}
REQUESTS = {
    "GET": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET of 1.0": b"GET / HTTP/1.0\r\n\r\n",
    "GET that is the last": b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "HEAD": b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n",
    "POST that nobody reads": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde",
    "POST of a body that never comes": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabc",
}
LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
LAST_ANSWER: Answer = (200, [LENGTH], [b"ok"])


@attrs.frozen
class Heard:
    """A response as a client reads it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_whole: bool


async def _told(answers: list[Answer], request: bytes) -> bytes:
    """Return the bytes answered to this request, and to a second one if the connection accepts one."""
    told = b""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for status, headers, pieces in [LAST_ANSWER] if scope["path"] == "/last" else answers:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async with serving_app(app) as port:
        with anyio.fail_after(10):
            async with await anyio.connect_tcp(LOOPBACK, port) as stream:
                await stream.send(request)
                with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    told = await stream.receive()
                    await stream.send(LAST)
                told += await Raw(stream).rest()
    return told.removesuffix(b"<reset>")


def _by_h11(answer: Answer, request: bytes) -> bytes:
    """Return h11's response to this request, and to the last one if h11 accepts it."""
    connection, told = h11.Connection(h11.SERVER), b""
    connection.receive_data(request)
    for status, headers, pieces in (answer, LAST_ANSWER):
        while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
            pass
        sent = [(name, value.strip()) for name, value in headers]
        close = (b"connection", b"close")
        if connection.their_state is h11.SEND_BODY and close not in sent:
            sent.append(close)
        told += connection.send(h11.Response(status_code=status, headers=sent)) or b""
        has_body = status not in (204, 304) and (request, told.count(b"HTTP/")) != (REQUESTS["HEAD"], 1)
        for piece in pieces if has_body else []:
            told += connection.send(h11.Data(data=piece)) or b""
        told += connection.send(h11.EndOfMessage()) or b""
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            break
        connection.start_next_cycle()
        connection.receive_data(LAST)
    return told


def _heard(told: bytes, method: bytes) -> list[Heard]:
    """Parse the responses in these bytes. Drop dates, which only the server adds."""
    heard = []
    while told:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method if not heard else b"GET", target="/", headers=[("host", "a")]))
        client.send(h11.EndOfMessage())
        client.receive_data(told)
        response, body = client.next_event(), b""
        if not isinstance(response, h11.Response):
            return heard
        event: Any = None
        with contextlib.suppress(h11.RemoteProtocolError):  # the connection ends within the body
            while not isinstance(event, h11.EndOfMessage):
                event = client.next_event()
                if event is h11.NEED_DATA:
                    client.receive_data(b"")
                elif isinstance(event, h11.Data):
                    body += event.data
        headers = sorted((name, value.lower()) for name, value in response.headers if name != b"date")
        heard.append(Heard(response.status_code, headers, body, isinstance(event, h11.EndOfMessage)))
        told = client.trailing_data[0]
    return heard


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_response_is_the_one_h11_sends(answer: Answer, request_: bytes) -> None:
    method = request_.partition(b" ")[0]
    told = await _told([answer], request_)
    assert _heard(told, method) == _heard(_by_h11(answer, request_), method)
    assert told.count(b"\r\ndate: ") == told.count(b"HTTP/1.1 ")


@pytest.mark.parametrize("answers", INVALID.values(), ids=INVALID.keys())
async def test_invalid_response_ends_connection_incomplete(answers: list[Answer]) -> None:
    heard = _heard(await _told(answers, REQUESTS["GET"]), b"GET")
    assert all(each.status == 500 or not each.is_whole for each in heard)


async def test_request_without_response_is_500_with_envelope() -> None:
    (heard,) = _heard(await _told([], REQUESTS["GET"]), b"GET")
    assert heard.status == 500
    assert b'"type":"internal_error"' in heard.body
    assert (b"connection", b"close") in heard.headers


async def test_client_is_asked_for_its_body_once_it_is_read() -> None:
    request = b"POST /take HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    async with serving(Timeouts()) as served, served.connected() as client:
        await client.send(request)
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await client.send(b"{}")
        assert (await client.until(b"{}")).startswith(b"HTTP/1.1 200 ")
        await client.send(request.replace(b"/take", b"/none"))
        assert (await client.rest()).startswith(b"HTTP/1.1 404 ")  # the response's body is not needed


async def test_body_with_an_upgrade_is_read() -> None:
    """Java's client offers h2c with its first request, even if that has a body."""
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
    head = b"POST /take HTTP/1.1\r\nhost: x\r\n" + upgrade
    async with serving(Timeouts()) as served, served.connected() as client:
        for body in (b"content-length: 2\r\n\r\n{}", b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"):
            await client.send(head + body)
            assert (await client.until(b"{}")).startswith(b"HTTP/1.1 200 ")
    assert served.paths == ["/take", "/take"]


@pytest.mark.parametrize("cut", range(1, 5))
async def test_chunked_body_ends_where_it_ends_however_it_is_cut(cut: int) -> None:
    chunked = b"POST /take HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    chunked += b"1;a=b\r\n{\r\n1\r\n}\r\n0\r\nx-a: b\r\n\r\n"
    async with serving(Timeouts()) as served, served.connected() as client:
        await client.send(chunked[:-cut])
        await anyio.sleep(0.05)
        await client.send(chunked[-cut:] + REQUESTS["GET"].replace(b" / ", b" /hello "))
        await client.until(b"{}")
        while served.paths != ["/take", "/hello"]:
            await client.until(b"{}")


async def test_chunks_that_are_all_framing_are_refused_with_envelope() -> None:
    async with serving(Timeouts()) as served, served.connected() as client:
        await client.send(b"POST /take HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(anyio.BrokenResourceError):
            for _ in range(40):
                await client.send(b"1;a=" + b"b" * 1000 + b"\r\n{\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b'"error"' in body
    assert served.paths == []


async def test_pipelined_requests_are_not_read_without_end() -> None:
    """While a request waits, only a limited number of pipelined bytes is read. The rest stays in the kernel."""
    hello = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
    many = 400_000
    sent = 0
    async with serving(Timeouts()) as served, served.connected() as client, anyio.create_task_group() as tasks:
        await client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await served.waiting.wait()

        async def pour() -> None:
            nonlocal sent
            while sent < many:
                await client.send(hello * 1000)
                sent += 1000

        tasks.start_soon(pour)
        await anyio.sleep(1)
        assert MAX_UNREAD_BYTES < sent * len(hello) < many * len(hello)
        tasks.cancel_scope.cancel()


async def test_response_before_the_body_closes_the_connection() -> None:
    """The rest of the body is never read, so a request that reused the connection would get no answer."""
    told = await _told([(401, [LENGTH], [b"{}"])], REQUESTS["POST of a body that never comes"])
    assert told.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in told.lower()
    assert told.endswith(b"{}")


async def test_handler_is_notified_when_a_pipelining_caller_leaves() -> None:
    gone = anyio.Event()

    async def app(_: Any, receive: Any, __: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async with serving_app(app) as port:
        async with await anyio.connect_tcp(LOOPBACK, port) as stream:
            await stream.send(REQUESTS["GET"] * 2)
        with anyio.fail_after(5):
            await gone.wait()


async def test_unread_stream_is_closed_before_buffers_grow() -> None:
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

    hasty = Timeouts(grace_s=0.3, min_bytes_per_s=1 << 30)
    async with serving_app(app, timeouts=hasty) as port, await anyio.connect_tcp(LOOPBACK, port) as stream:
        await stream.send(REQUESTS["GET"])
        with anyio.fail_after(30):
            await ended.wait()
    assert sent < 64 << 20  # limited by the buffers of two sockets
