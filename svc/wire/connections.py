"""HTTP connections to any number of servers, on httpx, with the proxies that the environment names.

One pool of httpx examines each of its connections several times for every request, which takes milliseconds where
hundreds are open. Each pool here therefore has a single connection, and an idle one is taken from the top of a stack.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from functools import cached_property
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx

_MAX_IDLE: Final = 256  # to one server
_IDLE_SECONDS: Final = 30.0  # coordinators keep an idle connection for longer
_LIMITS: Final = httpx.Limits(max_connections=1, keepalive_expiry=_IDLE_SECONDS)
_PROXY_SCHEMES: Final = ("http", "https")

Origin = tuple[str, str, int | None]


def open_client(*, transport: httpx.AsyncBaseTransport | None = None, **settings: Any) -> httpx.AsyncClient:
    """Return a client of httpx over `Connections`, or over `transport` where one is given."""
    return httpx.AsyncClient(transport=transport if transport is not None else Connections(), **settings)


class Connections(httpx.AsyncBaseTransport):
    """Transport without a limit on connections. Idle ones are kept for the next request to the same server."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[httpx.AsyncHTTPTransport]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        idle = self._idle.setdefault((request.url.scheme, request.url.host, request.url.port), [])
        connection = idle.pop() if idle else self._connection(request)
        content = request.stream if isinstance(request.stream, httpx.ByteStream) else _Content(request.stream)
        request.stream = content
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            with anyio.CancelScope(shield=True):  # closes a socket, waits for nothing
                await connection.aclose()
            raise
        finally:
            if isinstance(content, _Content):
                await content.end()
        if not isinstance(response.stream, httpx.AsyncByteStream):
            raise TypeError("a transport for asyncio and trio answers with an asynchronous stream")
        body = _Body(response.stream, connection, idle)
        return httpx.Response(
            response.status_code, headers=response.headers, stream=body, extensions=response.extensions
        )

    async def aclose(self) -> None:
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                await connection.aclose()

    def _connection(self, request: httpx.Request) -> httpx.AsyncHTTPTransport:
        proxy = _proxy_of(request)
        encrypted = request.url.scheme == "https" or (proxy is not None and proxy.startswith("https:"))
        return httpx.AsyncHTTPTransport(verify=self._trusted if encrypted else False, limits=_LIMITS, proxy=proxy)

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """Certificates of the machine, or those that SSL_CERT_FILE names. Reading them takes tens of milliseconds."""
        return httpx.create_ssl_context()


class _Content(httpx.AsyncByteStream):
    """Body of one request. A server may answer before it has received all of it."""

    def __init__(self, stream: httpx.SyncByteStream | httpx.AsyncByteStream) -> None:
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError("the content must be readable without blocking the event loop")
        self._stream = stream
        self._pieces: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._pieces = aiter(self._stream)
        return self._pieces

    async def end(self) -> None:
        """Close the iterator, which otherwise the garbage collector would."""
        if isinstance(self._pieces, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await self._pieces.aclose()


class _Body(httpx.AsyncByteStream):
    """Body of one answer. Closing it returns the connection."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream,
        connection: httpx.AsyncHTTPTransport,
        idle: list[httpx.AsyncHTTPTransport],
    ) -> None:
        self._stream = stream
        self._connection: httpx.AsyncHTTPTransport | None = connection
        self._idle = idle

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await self._stream.aclose()
        finally:
            if len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                with anyio.CancelScope(shield=True):
                    await connection.aclose()


def _proxy_of(request: httpx.Request) -> str | None:
    """Address of the proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY name for a request.

    Raises httpx.ProxyError for a proxy of another kind."""
    proxies = getproxies()
    proxy = proxies.get(request.url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(request.url.netloc.decode("ascii")):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(tuple(f"{scheme}://" for scheme in _PROXY_SCHEMES)):
        raise httpx.ProxyError("HTTP_PROXY, HTTPS_PROXY or ALL_PROXY must name an http:// or https:// proxy")
    return proxy
