"""HTTP transport for httpx without a limit on connections. Uses the proxies that the environment sets.

A pool of httpx scans all its connections several times per request, which takes milliseconds with hundreds of
connections. So each pool here has a single connection, and a stack stores the idle pools.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import cached_property, partial
from typing import Any, Final
from urllib.request import getproxies, proxy_bypass

import anyio
import httpx

_MAX_IDLE_CONNECTIONS_PER_SERVER: Final = 256
_MAX_IDLE_SERVERS: Final = 64  # servers with idle connections; a gateway may redirect to any number of hosts
_IDLE_TIMEOUT_S: Final = 30.0  # shorter than the coordinator's limit, so that the client closes first
_LIMITS: Final = httpx.Limits(max_connections=1, keepalive_expiry=_IDLE_TIMEOUT_S)
_PROXY_SCHEMES: Final = ("http", "https")

Origin = tuple[str, str, int | None]


def open_client(*, transport: httpx.AsyncBaseTransport | None = None, **settings: Any) -> httpx.AsyncClient:
    """Return an httpx client over `transport`, by default over `ConnectionTransport`."""
    return httpx.AsyncClient(transport=transport if transport is not None else ConnectionTransport(), **settings)


class ConnectionTransport(httpx.AsyncBaseTransport):
    """Transport without a limit on connections. Idle connections are reused for requests to the same server."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[httpx.AsyncHTTPTransport]] = {}  # the most recently used server is last

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = request.url.scheme, request.url.host, request.url.port
        idle = self._idle.get(origin)
        connection = idle.pop() if idle else self._new_connection(request)
        content = request.stream if isinstance(request.stream, httpx.ByteStream) else _RequestBody(request.stream)
        request.stream = content
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await _close_connection(connection)
            raise
        finally:
            if isinstance(content, _RequestBody):
                await content.end()
        if not isinstance(response.stream, httpx.AsyncByteStream):
            raise TypeError("the transport must return a response whose stream is asynchronous")
        body = _ResponseBody(response.stream, partial(self._store_idle_connection, origin, connection))
        return httpx.Response(
            response.status_code, headers=response.headers, stream=body, extensions=response.extensions
        )

    async def aclose(self) -> None:
        while self._idle:
            _, connections = self._idle.popitem()
            for connection in connections:
                await _close_connection(connection)

    async def _store_idle_connection(self, origin: Origin, connection: httpx.AsyncHTTPTransport) -> None:
        idle = self._idle.pop(origin, [])
        self._idle[origin] = idle
        idle.append(connection)
        surplus = [idle.pop(0)] if len(idle) > _MAX_IDLE_CONNECTIONS_PER_SERVER else []
        if len(self._idle) > _MAX_IDLE_SERVERS:
            surplus += self._idle.pop(next(iter(self._idle)))
        for each in surplus:
            await _close_connection(each)

    def _new_connection(self, request: httpx.Request) -> httpx.AsyncHTTPTransport:
        proxy = _find_proxy(request)
        encrypted = request.url.scheme == "https" or (proxy is not None and proxy.startswith("https:"))
        return httpx.AsyncHTTPTransport(verify=self._ssl_context if encrypted else False, limits=_LIMITS, proxy=proxy)

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        """TLS context with the certificates of the machine or SSL_CERT_FILE, cached because loading them is slow."""
        return httpx.create_ssl_context()


class _RequestBody(httpx.AsyncByteStream):
    """Body of one request. Call `end` once the answer has arrived, even if the body was not read to its end."""

    def __init__(self, stream: httpx.SyncByteStream | httpx.AsyncByteStream) -> None:
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError(
                "the request's content must be an asynchronous stream, because reading it must not block the event loop"
            )
        self._stream = stream
        self._pieces: AsyncIterator[bytes] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._pieces = aiter(self._stream)
        return self._pieces

    async def end(self) -> None:
        """Close the iterator. Otherwise the garbage collector would close it later."""
        if isinstance(self._pieces, AsyncGenerator):
            with anyio.CancelScope(shield=True):
                await self._pieces.aclose()


class _ResponseBody(httpx.AsyncByteStream):
    """Body of one answer. `close` is called once, when the body is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, close: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._close: Callable[[], Awaitable[None]] | None = close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            try:
                await self._stream.aclose()
            finally:
                await close()


async def _close_connection(connection: httpx.AsyncHTTPTransport) -> None:
    with anyio.CancelScope(shield=True):  # safe to shield, because closing a socket does not block
        await connection.aclose()


def _find_proxy(request: httpx.Request) -> str | None:
    """Return the proxy that HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY set for a request, or None.

    Raises httpx.ProxyError for a proxy that is neither http:// nor https://."""
    proxies = getproxies()
    proxy = proxies.get(request.url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(request.url.netloc.decode("ascii")):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if not proxy.startswith(tuple(f"{scheme}://" for scheme in _PROXY_SCHEMES)):
        raise httpx.ProxyError("HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must be http:// or https:// addresses")
    return proxy
