"""Messages that a proxy in front may parse differently, and unsupported protocols."""

import json
import re
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import NoReturn

import pytest

from coordinatord.http import responses
from coordinatord.http.server.connection import Timeouts
from tests.integration.coordinatord.server.serving import ORIGIN, Served, serving

SMUGGLED = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(Timeouts()) as served:
        yield served


def _post(*headers: bytes, body: bytes) -> bytes:
    return b"\r\n".join([b"POST /take HTTP/1.1", b"host: x", *headers, b"", b""]) + body + SMUGGLED


AMBIGUOUS = {
    "both lengths, chunked ends first": _post(b"content-length: 40", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
    "both lengths, the other way round": _post(b"transfer-encoding: chunked", b"content-length: 2", body=b"0\r\n\r\n"),
    "two different lengths": _post(b"content-length: 2", b"content-length: 3", body=b"{}"),
    "a length with a sign": _post(b"content-length: +2", body=b"{}"),
    "a length in hex": _post(b"content-length: 0x2", body=b"{}"),
    "a list of lengths": _post(b"content-length: 2, 3", body=b"{}"),
    "an unknown coding": _post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "chunked twice": _post(b"transfer-encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "chunked not last": _post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
    "chunked behind a tab": _post(b"transfer-encoding:\x0bchunked", body=b"0\r\n\r\n"),
    "a space before the colon": _post(b"transfer-encoding : chunked", body=b"0\r\n\r\n"),
    "a folded header": _post(b"transfer-encoding: chunked\r\n ,identity", body=b"0\r\n\r\n"),
    "a chunk size with a sign": _post(b"transfer-encoding: chunked", body=b"+2\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than it says": _post(b"transfer-encoding: chunked", body=b"1\r\n{}\r\n0\r\n\r\n"),
    "no host": b"GET /hello HTTP/1.1\r\n\r\n" + SMUGGLED,
    "two hosts": b"GET /hello HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n" + SMUGGLED,
    "a NUL in a header": b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: b\0c\r\n\r\n" + SMUGGLED,
    "a version that is none": b"GET /hello HTTP/1.7\r\nhost: x\r\n\r\n" + SMUGGLED,
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a folded header of no meaning": b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: b\r\n c\r\n\r\n" + SMUGGLED,
    "a header folded by a tab": b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: b\r\n\tc\r\n\r\n" + SMUGGLED,
    "a line after the request's that begins with a space": b"GET /hello HTTP/1.1\r\n host: x\r\n\r\n" + SMUGGLED,
    "lines that end in LF alone": b"GET /hello HTTP/1.1\nhost: x\n\n" + SMUGGLED,
    "one line that ends in LF alone": b"GET /hello HTTP/1.1\r\nhost: x\nx-a: b\r\n\r\n" + SMUGGLED,
    "an empty line of LF alone": b"GET /hello HTTP/1.1\r\nhost: x\r\n\n" + SMUGGLED,
    "an LF before the request": b"\n" + SMUGGLED,
    "a CR inside of a line": b"GET /hello HTTP/1.1\r\nhost: x\r\nx-a: b\rc\r\n\r\n" + SMUGGLED,
    "trailers that end in LF alone": _post(b"transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\nx-a: b\n\n"),
    "a folded trailer": _post(b"transfer-encoding: chunked", body=b"2\r\n{}\r\n0\r\nx-a: b\r\n c\r\n\r\n"),
    "a chunk that ends in LF alone": _post(b"transfer-encoding: chunked", body=b"2\n{}\n0\n\n"),
    "an address without a host": b"GET http:///hello HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "an address with a user": b"GET http://me@x/hello HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "an address with a fragment": b"GET http://x/hello#a HTTP/1.1\r\nhost: x\r\n\r\n" + SMUGGLED,
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00" + b"\n\n",
}


@pytest.mark.parametrize("message", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_ambiguous_message_is_refused_and_disconnected(served: Served, message: bytes) -> None:
    async with served.connected() as client:
        await client.send(message)
        answer = await client.rest()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer[9:10] in b"45"
    assert served.bodies == 0
    assert served.paths == []


async def test_refusal_before_any_route_has_the_envelope_of_all_errors(served: Served) -> None:
    async with served.connected() as client:
        await client.send(b"GET\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"\r\nx-request-id: " in head.lower()
    assert b"\r\nx-svc-retryable: false" in head.lower()
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


REFUSED_HEADS = {
    "no method": b"GET\r\norigin: %s\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nOrigin:  %s \r\nx-a: b\r\n c\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\nhost: x\r\norigin: %s\r\n\r\n",
    "no end": b"GET / HTTP/1.1\r\nhost: x\r\norigin: %s\r\nx-long: " + b"a" * 20_000,
    "two lengths": b"POST /take HTTP/1.1\r\nhost: x\r\norigin: %s\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
}


@pytest.mark.parametrize("head", REFUSED_HEADS.values(), ids=REFUSED_HEADS.keys())
async def test_early_refusal_is_readable_by_allowed_origins_only(served: Served, head: bytes) -> None:
    for origin, allowed in ((ORIGIN.encode(), True), (ORIGIN.encode() + b".evil", False)):
        async with served.connected() as client:
            await client.send(head % origin)
            answer = (await client.rest()).lower()
        assert answer[9:10] == b"4" or answer.startswith(b"http/1.1 505 ")
        assert (b"\r\naccess-control-allow-origin: " + ORIGIN.encode() + b"\r\n" in answer) == allowed
        assert (b"\r\naccess-control-expose-headers: x-request-id" in answer) == allowed
        assert b"\r\nvary: origin\r\n" in answer


@pytest.mark.parametrize(
    "headers",
    [b"x-long: " + b"a" * 20_000, b"x-long: " + b"a" * 20_000 + b"\r\n\r\n", b"a:\r\n" * 100 + b"\r\n"],
    ids=["unfinished", "whole at once", "of many headers"],
)
async def test_head_of_more_than_16_kib_or_100_headers_is_431(served: Served, headers: bytes) -> None:
    async with served.connected() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n" + headers)
        answer = (await client.rest()).lower()
    assert answer.startswith(b"http/1.1 431 ")
    assert b"\r\nx-svc-retryable: false\r\n" in answer
    assert b"\r\ndate: " in answer
    assert served.paths == []


async def test_every_answer_tells_the_time(served: Served) -> None:
    async with served.connected() as client:
        await client.send(b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await client.rest()
    told = re.search(rb"\r\ndate: ([^\r]+)\r\n", answer)
    assert told is not None
    assert abs(parsedate_to_datetime(told[1].decode()).timestamp() - time.time()) < 10


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (b"HEAD /hello HTTP/1.2\r\nhost: x\r\n\r\n", b"505"),
        (b"HEAD /hello HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", b"400"),
        (b"HEAD /hello HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 100 + b"\r\n", b"431"),
    ],
    ids=["version", "two lengths", "long head"],
)
async def test_refusal_of_a_head_has_no_body_and_harms_nobody_else(
    served: Served, message: bytes, status: bytes
) -> None:
    async with served.connected() as honest:
        await honest.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        await honest.until(b"{}")
        async with served.connected() as client:
            await client.send(message)
            answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.endswith(b"\r\n\r\n")
        await honest.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        await honest.until(b"{}")


async def test_method_in_other_letters_is_another_method(served: Served) -> None:
    async with served.connected() as client:
        await client.send(b"HEAd /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_connection_whose_protocol_fails_ends_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> NoReturn:
        raise ValueError

    monkeypatch.setattr(responses, "malformed_http", broken)
    async with served.connected() as client:
        await client.send(b"GET\r\n\r\n")
        assert await client.rest() == b""
    async with served.connected() as honest:
        await honest.send(b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await honest.until(b"{}")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"POST /take HTTP/1.1\r\ncontent-encoding: gzip\r\n", b"{}", b"400"),
        (b"POST /take HTTP/1.1\r\ncontent-encoding: identity\r\n", b"{}", b"200"),
        (b"POST /take?limit=1&limit=2 HTTP/1.1\r\n", b"{}", b"400"),
        (b"POST /take?limit=1&%6cimit=2 HTTP/1.1\r\n", b"{}", b"400"),
        (b"POST http://elsewhere/take HTTP/1.1\r\n", b"{}", b"200"),
        (b"POST HTTPS://[::1]:8402/take?limit=1 HTTP/1.1\r\n", b"{}", b"200"),
        (b"POST http://elsewhere HTTP/1.1\r\n", b"{}", b"404"),
        (b"POST ftp://elsewhere/take HTTP/1.1\r\n", b"{}", b"404"),
        (b"POST //take HTTP/1.1\r\n", b"{}", b"404"),
        (b"CONNECT /take HTTP/1.1\r\n", b"", b"405"),
    ],
    ids=[
        "encoded",
        "not encoded",
        "key twice",
        "key twice, one encoded",
        "whole address",
        "one of IPv6 with a query",
        "one without a path",
        "one of another scheme",
        "two slashes",
        "tunnel",
    ],
)
async def test_odd_but_valid_request_gets_its_status(served: Served, head: bytes, body: bytes, status: bytes) -> None:
    async with served.connected() as client:
        length = str(len(body)).encode()
        await client.send(head + b"host: x\r\nconnection: close\r\ncontent-length: " + length + b"\r\n\r\n" + body)
        assert (await client.rest()).startswith(b"HTTP/1.1 " + status)


async def test_requests_sent_at_once_are_answered_in_their_order(served: Served) -> None:
    ask = b"POST /take HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    async with served.connected() as client:
        await client.send(ask + SMUGGLED + ask.replace(b"host", b"connection: close\r\nhost"))
        assert (await client.rest()).count(b"HTTP/1.1 200 ") == 3
    assert served.paths == ["/take", "/hello", "/take"]


async def test_half_closed_client_gets_its_response(served: Served) -> None:
    async with served.connected() as client:
        await client.send(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.stream.send_eof()
        await served.waiting.wait()
        served.released.set()
        assert (await client.rest()).startswith(b"HTTP/1.1 200 ")
