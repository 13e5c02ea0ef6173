"""Errors from below aiohttp become NoResponse, both before the headers and within the body."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest

from coordinatord.base.http_client import HttpClient, NoResponse, open_http

FOREIGN = [
    ssl.SSLError("decryption failed or bad record mac"),
    OSError("no buffer space"),
    UnicodeError("label too long"),
    ValueError("port out of range"),
    TimeoutError(),
    aiohttp.ClientPayloadError("truncated"),
]
each_error = pytest.mark.parametrize("error", FOREIGN, ids=lambda error: type(error).__name__)


@asynccontextmanager
async def client() -> AsyncIterator[HttpClient]:
    async with open_http(connections=1, timeout_s=5) as http:
        yield http


def raising(error: Exception) -> Any:
    async def fail(*_arguments: object, **_settings: object) -> None:
        raise error

    return fail


@each_error
async def test_foreign_error_before_the_answer_is_no_response(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiohttp.TCPConnector, "connect", raising(error))
    async with client() as http:
        with pytest.raises(NoResponse):
            async with http("GET", "http://127.0.0.1:1/", {}):
                pass


@each_error
async def test_foreign_error_in_the_body_is_no_response(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - anyio's, not Django's
    async with listener, anyio.create_task_group() as tasks, client() as http:
        tasks.start_soon(listener.serve, serve)
        async with http("GET", f"http://127.0.0.1:{port}/", {}) as response:
            monkeypatch.setattr(aiohttp.StreamReader, "readchunk", raising(error))
            with pytest.raises(NoResponse):
                await response.read(max_bytes=100)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/", "http://a..b/", f"http://{'a' * 64}.test/"])
async def test_address_that_no_request_can_be_made_to_is_no_response(url: str) -> None:
    async with client() as http:
        with pytest.raises(NoResponse):
            async with http("GET", url, {}):
                pass
