"""One request to an ASGI application and its response, piece by piece. Event streams arrive live, and the application
notices clients that disconnect."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx

_PIECE_TIMEOUT_S: Final = 100.0  # of a caller, for each piece
_GONE: Final = {"type": "gone"}


class Exchange(httpx.AsyncByteStream):
    """A request with a response body that is read once, as a stream."""

    def __init__(self, request: httpx.Request) -> None:
        self._request = request
        self._come: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._left = asyncio.Event()
        self._is_asked = False

    async def run(self, application: Any) -> None:
        """Run the application's side."""
        url = self._request.url
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "scheme": "http",
            "path": url.path,
            "raw_path": url.raw_path.partition(b"?")[0],
            "query_string": url.query,
            "server": (url.host, url.port),
            "client": ("127.0.0.1", 40_000),
            "root_path": "",
        }
        await application(scope, self._receive, self._send)

    def cut(self) -> None:
        """Drop everything sent from now on."""
        self._come.put_nowait(_GONE)

    async def response(self) -> httpx.Response:
        """Wait for the head, and return the response. Raise httpx's errors if none comes."""
        try:
            started = await self._next()
        except BaseException:
            self._left.set()
            raise
        return httpx.Response(started["status"], headers=started["headers"], stream=self, request=self._request)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            piece = await self._next()
            if piece.get("body"):
                yield piece["body"]
            if not piece.get("more_body", False):
                return

    async def aclose(self) -> None:
        self._left.set()

    async def _receive(self) -> dict[str, Any]:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": self._request.content, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self._come.put_nowait(dict(message))

    async def _next(self) -> dict[str, Any]:
        try:
            message = await asyncio.wait_for(self._come.get(), _PIECE_TIMEOUT_S)
        except TimeoutError:
            raise httpx.ReadTimeout("no answer") from None
        if message is _GONE:
            raise httpx.ReadError("the coordinator is gone")
        return message
