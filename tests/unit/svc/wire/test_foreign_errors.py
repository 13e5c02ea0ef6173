"""Errors from below httpx reach callers as the client's own errors, both before the headers and within the body."""

import ssl
from collections.abc import AsyncIterator
from typing import Any

import anyio
import attrs
import httpx
import pytest

from svc.core.clock import ServerClock
from svc.core.retries import RetryPolicy
from svc.errors import ConnectionFailed
from svc.wire.checked_reads import CheckedReader
from svc.wire.gateways import Gateways
from svc.wire.transport import Transport

FOREIGN = [
    ssl.SSLError("decryption failed or bad record mac"),
    ConnectionResetError("reset"),
    UnicodeError("label too long"),
    ValueError("port out of range"),
    OverflowError("port must be 0-65535"),
    ExceptionGroup("attempts", [OverflowError("port must be 0-65535")]),
    anyio.BrokenResourceError(),
    anyio.ClosedResourceError(),
    httpx.StreamClosed(),
]
each_error = pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)


async def _read(transport: Transport) -> list[bytes]:
    async with transport.stream_pieces("/v1/files/x/content", {}) as pieces:
        return [piece async for piece in pieces]


@attrs.frozen
class Failing(httpx.AsyncBaseTransport):
    """Raises before the headers, or in the middle of the body."""

    error: Exception
    in_body: bool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not self.in_body:
            raise self.error
        return httpx.Response(200, stream=FailingBody(self.error))


@attrs.frozen
class FailingBody(httpx.AsyncByteStream):
    error: Exception

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{"
        raise self.error


@each_error
@pytest.mark.parametrize("in_body", [False, True])
async def test_foreign_error_of_a_request_is_a_failed_connection(error: Exception, in_body: bool) -> None:
    async with httpx.AsyncClient(transport=Failing(error, in_body), base_url="http://coordinator") as http:
        transport = Transport(http, ServerClock(), RetryPolicy(max_retries=0))
        with pytest.raises(ConnectionFailed):
            await transport.get("/v1/models", dict[str, Any])


@each_error
@pytest.mark.parametrize("in_body", [False, True])
async def test_foreign_error_of_a_stream_is_a_failed_connection(error: Exception, in_body: bool) -> None:
    async with httpx.AsyncClient(transport=Failing(error, in_body), base_url="http://coordinator") as http:
        transport = Transport(http, ServerClock(), RetryPolicy(max_retries=0))
        with pytest.raises(ConnectionFailed):
            await _read(transport)


@each_error
@pytest.mark.parametrize("in_body", [False, True])
async def test_foreign_error_of_a_gateway_leaves_the_next_one_to_try(error: Exception, in_body: bool) -> None:
    failing = Failing(error, in_body)

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "failing":
            return await failing.handle_async_request(request)
        return httpx.Response(200, stream=httpx.ByteStream(b"content"))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        gateways = CheckedReader(Gateways(http, ("http://failing", "http://well")))
        read = await gateways.read("opaque", bytearray, bytearray.extend, bytes)
    assert bytes(read) == b"content"
