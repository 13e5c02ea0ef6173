"""Requests that httptools accepts and the server rejects. Each test runs both."""

import httptools
import pytest

from common.api import limits
from coordinatord.http.server.heads import ChunkedBody, HeadParser, MalformedRequest, RequestHead

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
