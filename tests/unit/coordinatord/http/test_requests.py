"""Heads and bodies of requests. Heads that httptools accepts and the server rejects are parsed by both."""

import json

import anyio
import httptools
import pytest

from common.api import limits
from common.daemon.asgi import Message
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http.bodies import BodyBudget, BodyReader, ClientDisconnected, UnacceptableBody, parse_body
from coordinatord.http.server.heads import ChunkedBody, HeadParser, MalformedRequest, RequestHead
from tests.unit.coordinatord.http.asgi import receiving

HOST = b"host: a\r\n"
ACCEPTED_BY_HTTPTOOLS = {
    "HTTP/2.0": (b"GET / HTTP/2.0\r\n" + HOST, 505),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\n" + HOST, 505),
    "RTSP/1.0": (b"OPTIONS * RTSP/1.0\r\n" + HOST, 400),
    "ICE/1.0": (b"SOURCE / ICE/1.0\r\n" + HOST, 400),
    "a method of WebDAV": (b"PROPFIND / HTTP/1.1\r\n" + HOST, 405),
    "a method of SSDP": (b"M-SEARCH * HTTP/1.1\r\n" + HOST, 405),
    "two spaces before the target": (b"GET  / HTTP/1.1\r\n" + HOST, 400),
    "two spaces after the target": (b"GET /  HTTP/1.1\r\n" + HOST, 400),
    "an empty line before the request line": (b"\r\nGET / HTTP/1.1\r\n" + HOST, 400),
    "no host": (b"GET / HTTP/1.1\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\n" + 2 * HOST, 400),
    "two hosts in HTTP/1.0": (b"GET / HTTP/1.0\r\n" + 2 * HOST, 400),
    "a coding before chunked": (b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: gzip, chunked\r\n", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\n" + HOST + b"transfer-encoding: chunked\r\n", 400),
    "an address without a host": (b"GET http:///x HTTP/1.1\r\n" + HOST, 400),
    "an address with a user": (b"GET http://me@x/ HTTP/1.1\r\n" + HOST, 400),
    "a head of too many fields": (b"GET / HTTP/1.1\r\n" + HOST + b"a:\r\n" * limits.MAX_HEADERS, 431),
    "a head that is too long": (b"GET / HTTP/1.1\r\n" + HOST + b"a: %s\r\n" % bytes(b"a" * limits.MAX_HEAD_BYTES), 431),
}
REFUSED_BY_HTTPTOOLS = {
    "a method of no kind": (b"FOO / HTTP/1.1\r\n" + HOST, 405),
    "a method in other letters": (b"HEAd / HTTP/1.1\r\n" + HOST, 405),
    "another version": (b"GET / HTTP/1.2\r\n" + HOST, 505),
    "no version": (b"GET /\r\n" + HOST, 400),
    "a bare LF": (b"GET / HTTP/1.1\r\nhost: a\nb: c\r\n", 400),
    "a folded line": (b"GET / HTTP/1.1\r\nhost: a\r\n b\r\n", 400),
    "two lengths": (b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 2\r\n" * 2, 400),
    "a length of twenty digits": (b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 00000000000000000002\r\n", 400),
    "a length and chunks": (
        b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n",
        400,
    ),
}


class Anything:
    """Parser callbacks that accept everything."""


@pytest.mark.parametrize(("head", "status"), ACCEPTED_BY_HTTPTOOLS.values(), ids=ACCEPTED_BY_HTTPTOOLS.keys())
def test_server_is_stricter_than_httptools(head: bytes, status: int) -> None:
    httptools.HttpRequestParser(Anything()).feed_data(head + b"\r\n")
    with pytest.raises(MalformedRequest) as refused:
        HeadParser().parse(head + b"\r\n")
    assert refused.value.status == status


@pytest.mark.parametrize(("head", "status"), REFUSED_BY_HTTPTOOLS.values(), ids=REFUSED_BY_HTTPTOOLS.keys())
def test_malformed_head_has_its_status(head: bytes, status: int) -> None:
    with pytest.raises(MalformedRequest) as refused:
        HeadParser().parse(head + b"\r\n")
    assert refused.value.status == status


def test_parser_reads_heads_after_bodies_and_upgrades() -> None:
    parser = HeadParser()
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\n"
    for fields, length in (
        (b"", 0),
        (b"content-length: 2\r\n", 2),
        (upgrade + b"content-length: 3\r\n", 3),
        (upgrade + b"transfer-encoding: chunked\r\n", None),
        (upgrade, 0),
        (b"X-A: \tb \r\n", 0),
    ):
        head = parser.parse(b"PUT /a?b HTTP/1.1\r\n" + HOST + fields + b"\r\n")
        assert (head.method, head.target, head.version, head.length) == ("PUT", b"/a?b", "1.1", length)
        assert not head.is_last
    assert head.headers == [(b"host", b"a"), (b"x-a", b"b")]


@pytest.mark.parametrize(
    ("line", "last"),
    [
        (b"connection: keep-alive", False),
        (b"connection: closed", False),
        (b"connection: Close", True),
        (b"connection: keep-alive , CLOSE", True),
        (b"connection: keep-alive\r\nconnection: close", True),
    ],
)
def test_close_among_connection_options_makes_request_the_last(line: bytes, *, last: bool) -> None:
    assert parse(b"GET / HTTP/1.1\r\n" + HOST + line + b"\r\n\r\n").is_last is last


def test_http_1_0_needs_no_host_and_is_the_last_request() -> None:
    head = parse(b"GET / HTTP/1.0\r\nexpect: 100-continue\r\nconnection: keep-alive\r\n\r\n")
    assert (head.version, head.is_last, head.expects_continue) == ("1.0", True, False)


def parse(head: bytes) -> RequestHead:
    return HeadParser().parse(head)


CHUNKED = b'3;a=b;c="d"\r\n\r\n{\r\n1\r\n}\r\n0;last\r\nx-a: b\r\n\r\n'


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_chunk_extensions_and_trailers_are_ignored(size: int) -> None:
    body, received, rest = ChunkedBody(), b"", b""
    sent = CHUNKED + b"\r\n\r\nGET"
    for at in range(0, len(sent), size):
        if body.ended:
            rest += sent[at : at + size]
            continue
        piece, behind = body.feed(sent[at : at + size])
        received, rest = received + piece, rest + behind
    assert (received, rest) == (b"\r\n{}", b"\r\n\r\nGET")


def test_long_chunk_extensions_are_refused() -> None:
    body = ChunkedBody()
    body.feed(b"1;a=%s\r\n{\r\n" % (b"b" * 10_000))
    with pytest.raises(MalformedRequest):
        body.feed(b"1;a=%s\r\n{\r\n" % (b"b" * 10_000))


def test_endless_trailers_are_refused() -> None:
    body = ChunkedBody()
    body.feed(b"0\r\n")
    with pytest.raises(MalformedRequest):
        body.feed(b"x-a: %s\r\n" % (b"b" * 1000) * 20)


def test_chunks_of_one_byte_are_accepted() -> None:
    body = ChunkedBody()
    assert body.feed(b"1\r\nx\r\n" * 10_000) == (b"x" * 10_000, b"")


READER = BodyReader(timeout_s=60, min_bytes_per_s=1000)


async def read(
    pieces: list[bytes | None], budget: BodyBudget, limit: int = 100, caller: str = "", **headers: str
) -> bytes:
    async with budget.open_share(caller) as share:
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return await READER.read(receiving(pieces), sent, limit, share)


async def test_body_up_to_the_limit_is_read_whole() -> None:
    assert await read([b"a" * 60, b"b" * 40], BodyBudget(1000)) == b"a" * 60 + b"b" * 40


@pytest.mark.parametrize("declared", ["101", "99999999999999999999", None])
async def test_body_over_the_limit_is_413_whether_declared_or_not(declared: str | None) -> None:
    headers = {"content_length": declared} if declared else {}
    with pytest.raises(UnacceptableBody) as refused:
        await read([b"a" * 60, b"b" * 41], BodyBudget(1000), **headers)
    assert refused.value.response.status == 413


async def test_bodies_beyond_the_budget_are_busy() -> None:
    budget = BodyBudget(100)
    async with budget.open_share("") as first:
        await READER.read(receiving([b"a" * 60]), [], 100, first)
        with pytest.raises(Retryable) as busy:
            await read([b"b" * 41], budget)
        assert busy.value.kind == "busy"
    assert await read([b"b" * 100], budget) == b"b" * 100


async def test_bodies_of_one_caller_leave_room_for_anothers() -> None:
    budget = BodyBudget(100, max_caller_bytes=50)
    async with budget.open_share("stranger") as held:
        held.reserve_bytes(50)
        with pytest.raises(Retryable) as busy:
            await read([b"a"], budget, caller="stranger")
        assert busy.value.kind == "busy"
        assert await read([b"b" * 50], budget, caller="honest") == b"b" * 50
    assert await read([b"a" * 50], budget, caller="stranger") == b"a" * 50


async def test_encoded_body_is_refused_unread() -> None:
    with pytest.raises(Refused):
        await read([], BodyBudget(100), content_encoding="gzip")


@pytest.mark.parametrize("part", [b"{}", b"1", b"[[]]", b'""'])
async def test_body_with_too_many_parts_is_refused(part: bytes) -> None:
    with pytest.raises(Refused, match="at most 16384 JSON values"):
        await parse_body(b'{"a":[' + b",".join([part] * 20_000) + b"]}")


async def test_body_whose_texts_are_long_is_read() -> None:
    pairs = {f"key {n}": "a,b" * 170 for n in range(16)}
    assert await parse_body(json.dumps({"metadata": pairs, "container": "A" * 100_000}).encode())


async def test_caller_who_goes_away_midway_is_noticed() -> None:
    with pytest.raises(ClientDisconnected):
        await read([b"a", None], BodyBudget(100))


async def test_endless_body_is_given_up_at_the_deadline() -> None:
    async def never() -> Message:
        await anyio.sleep_forever()
        raise AssertionError

    async with BodyBudget(100).open_share("") as share:
        with pytest.raises(UnacceptableBody) as slow:
            await BodyReader(timeout_s=0.01, min_bytes_per_s=1).read(never, [], 100, share)
    assert slow.value.response.status == 408


async def test_stalled_body_is_given_up_early() -> None:
    pieces = iter([{"type": "http.request", "body": b"a" * 50_000, "more_body": True}])

    async def receive() -> Message:
        for piece in pieces:
            return piece
        await anyio.sleep_forever()
        raise AssertionError

    async with BodyBudget(1 << 20).open_share("") as share:
        with anyio.fail_after(60), pytest.raises(UnacceptableBody) as slow:
            await BodyReader(timeout_s=60, min_bytes_per_s=1, stall_timeout_s=0.01).read(receive, [], 1 << 20, share)
    assert slow.value.response.status == 408


@pytest.mark.parametrize(
    ("second_piece_at", "is_slow"),
    [(4.9, False), (5.1, True), (5.0 + 0.01, False)],
    ids=["within the grace", "behind the rate", "at the rate"],
)
async def test_body_slower_than_the_least_rate_after_the_grace_is_408(second_piece_at: float, is_slow: bool) -> None:
    times = iter([0.0, 0.0, second_piece_at])  # once at the start and after each piece but the last
    reader = BodyReader(timeout_s=60, min_bytes_per_s=1000, clock=lambda: next(times))
    pieces = receiving([b"a" * 10, b"b" * 10, b"c"])
    async with BodyBudget(100).open_share("") as share:
        if is_slow:
            with pytest.raises(UnacceptableBody) as slow:
                await reader.read(pieces, [], 100, share)
            assert slow.value.response.status == 408
        else:
            assert len(await reader.read(pieces, [], 100, share)) == 21
