"""Responses with streamed bodies, as from a network. Responses of httpx's MockTransport count as already read."""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import httpx

from coordinatord.base.http_client import HttpClient, HttpResponse, NoResponse


class StreamedTransport(httpx.MockTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return streamed(await super().handle_async_request(request))


def streamed(response: httpx.Response) -> httpx.Response:
    """Return the response with an unread body."""
    if not response.is_stream_consumed:
        return response
    return httpx.Response(response.status_code, headers=response.headers, stream=_Body(response.content))


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._content:
            yield self._content


def http_over(client: httpx.AsyncClient) -> HttpClient:
    """Return the coordinator's HTTP client over an httpx client with a mock transport."""

    @asynccontextmanager
    async def http(
        method: str, url: str, headers: Mapping[str, str], content: Sequence[bytes] | AsyncIterable[bytes] = ()
    ) -> AsyncIterator[HttpResponse]:
        body = content if isinstance(content, AsyncIterable) else b"".join(content)
        try:
            request = client.build_request(method, url, headers=dict(headers), content=body)
            response = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise NoResponse(type(error).__name__) from error
        try:
            yield HttpResponse(response.status_code, response.headers, _pieces(response))
        finally:
            await response.aclose()

    return http


async def _pieces(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    except httpx.HTTPError as error:
        raise NoResponse(type(error).__name__) from error
