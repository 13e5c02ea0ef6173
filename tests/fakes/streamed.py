"""Answers without a network that are read as those of one: their bodies come in a stream, which httpx's own stand-in
hands over as if it had been read."""

from collections.abc import AsyncIterator

import httpx


class StreamedTransport(httpx.MockTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return streamed(await super().handle_async_request(request))


def streamed(response: httpx.Response) -> httpx.Response:
    """The same, unread."""
    if not response.is_stream_consumed:
        return response
    return httpx.Response(response.status_code, headers=response.headers, stream=_Body(response.content))


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._content:
            yield self._content
