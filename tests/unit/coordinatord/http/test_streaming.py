from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from common.daemon.asgi import Message
from coordinatord.base.errors import Retryable
from coordinatord.http.streaming import ResponseSourceFailed, StreamedResponse, send_streamed_response

pytestmark = pytest.mark.anyio


async def staying() -> Message:
    await anyio.sleep_forever()
    raise AssertionError("the client stays")


@asynccontextmanager
async def failing_after(pieces: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield a store's content that fails after this many pieces. Like `StoreRequests.stream`, closing the content
    raises Retryable."""

    async def read() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b"piece"
        raise OSError("connection reset")

    try:
        yield read()
    except OSError as error:
        raise Retryable("store_unavailable", str(error)) from error


@pytest.mark.parametrize("pieces", [0, 1])
async def test_store_failure_after_the_head_cuts_the_answer_short(pieces: int) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    with pytest.raises(ResponseSourceFailed, match="connection reset"):
        await send_streamed_response(staying, send, StreamedResponse(200, (), 10, lambda: failing_after(pieces)))
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * pieces]


async def test_failure_to_open_the_content_is_answered_instead() -> None:
    @asynccontextmanager
    async def missing() -> AsyncIterator[AsyncIterator[bytes]]:
        raise Retryable("object_missing", "lost")
        yield  # makes this function a generator

    async def send(message: Message) -> None:
        raise AssertionError(f"nothing is sent: {message}")

    with pytest.raises(Retryable, match="lost"):
        await send_streamed_response(staying, send, StreamedResponse(200, (), 10, missing))
