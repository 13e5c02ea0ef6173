"""HTTP connections of the provider: a transport for httpx over trio and h11, without its connection pool.

A provider's processor time goes into requests, a few for each job. httpx's own pool looks at each of its idle
connections for every request, and wraps each step of it several times: that costs three times what the request does.
"""

import select
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, Final, NoReturn, Self

import attrs
import h11
import httpx
import trio

_MOST_IDLE: Final = 256  # connections to one server: as many as wait for ops at a time
_IDLE_SECONDS: Final = 30.0  # coordinators keep an idle one for longer
_LONGEST_HEAD: Final = 128 * 1024
_RECEIVED: Final = 65_536

Origin = tuple[str, str, int]


@attrs.define(slots=True, eq=False)
class _Line:
    """One connection, for one exchange at a time."""

    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]
    socket: trio.socket.SocketType
    protocol: h11.Connection
    idle_since: float = 0.0

    @classmethod
    async def connect(cls, origin: Origin, tls: ssl.SSLContext | None) -> Self:
        _, host, port = origin
        plain = await trio.open_tcp_stream(host, port)
        stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] = plain
        if tls is not None:
            try:
                stream = trio.SSLStream(plain, tls, server_hostname=host, https_compatible=True)
                await stream.do_handshake()
            except BaseException:
                plain.socket.close()
                raise
        return cls(stream, plain.socket, h11.Connection(h11.CLIENT, max_incomplete_event_size=_LONGEST_HEAD))

    def close(self) -> None:
        """At once: whoever is in the middle of it is not waited for, and nothing is said to the other side."""
        self.socket.close()

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed it, or said something that nobody asked for."""
        if trio.current_time() - self.idle_since > _IDLE_SECONDS:
            return True
        looked = select.poll()
        looked.register(self.socket.fileno(), select.POLLIN)
        return bool(looked.poll(0))

    async def send(self, request: httpx.Request, seconds: float | None) -> None:
        url = request.url
        head = h11.Request(method=request.method, target=url.raw_path, headers=request.headers.raw)
        written = self.protocol.send(head) or b""
        if isinstance(request.stream, httpx.ByteStream):
            content = request.read()
            written += (content and self.protocol.send(h11.Data(data=content))) or b""
            await self._write(written + (self.protocol.send(h11.EndOfMessage()) or b""), seconds)
            return
        await self._write(written, seconds)
        if not isinstance(request.stream, httpx.AsyncByteStream):
            raise TypeError("a request's body must be one that can be read without holding up the loop")
        pieces = aiter(request.stream)
        try:
            async for piece in pieces:
                await self._write(self.protocol.send(h11.Data(data=piece)) or b"", seconds)
        finally:  # not left to the garbage collector, where the server wanted no more of it
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        await self._write(self.protocol.send(h11.EndOfMessage()) or b"", seconds)

    async def _write(self, data: bytes, seconds: float | None) -> None:
        with trio.move_on_after(seconds if seconds is not None else float("inf")) as scope:
            await self.stream.send_all(data)
        if scope.cancelled_caught:
            raise httpx.WriteTimeout("the server does not take the request")

    async def event(self, seconds: float | None) -> Any:
        """The next one that is not only a part."""
        while (event := self.protocol.next_event()) is h11.NEED_DATA:
            with trio.move_on_after(seconds if seconds is not None else float("inf")) as scope:
                received = await self.stream.receive_some(_RECEIVED)
            if scope.cancelled_caught:
                raise httpx.ReadTimeout("the server does not answer")
            if not received and self.protocol.their_state is h11.SEND_RESPONSE:
                raise httpx.RemoteProtocolError("the server closed the connection without an answer")
            self.protocol.receive_data(bytes(received))
        return event

    async def head(self, seconds: float | None) -> h11.Response:
        while True:
            event = await self.event(seconds)
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise httpx.RemoteProtocolError("the server answered with something else than a response")


@attrs.define(slots=True, eq=False)
class _RestOfAnswer(httpx.AsyncByteStream):
    """The rest of an answer. No generator: one that is left half-way has nothing to be collected."""

    connections: "KeptConnections"
    origin: Origin
    line: _Line
    request: httpx.Request
    seconds: float | None
    over: bool = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self.over:
            raise StopAsyncIteration
        try:
            event = await self.line.event(self.seconds)
        except BaseException as failure:
            self._leave()
            _raise(failure, self.request, httpx.ReadError)
        if isinstance(event, h11.Data):
            return bytes(event.data)
        self.over = True
        self.connections.give_back(self.origin, self.line)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if not self.over:
            self.over = True
            self.line.close()


class KeptConnections(httpx.AsyncBaseTransport):
    """KeptConnections to whatever servers are asked, kept for the next request to the same one."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[_Line]] = {}
        self._tls: ssl.SSLContext | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        told = request.extensions.get("timeout", {})
        origin = _origin(request.url)
        line = self._kept(origin)
        if line is None:
            line = await self._connected(origin, request, told.get("connect"))
        try:
            # A server that refuses a request before it has all of it may close: its answer is there all the same.
            with suppress(trio.BrokenResourceError):
                await line.send(request, told.get("write"))
            head = await line.head(told.get("read"))
        except BaseException as failure:
            line.close()
            _raise(failure, request, httpx.ReadError)
        return httpx.Response(
            head.status_code,
            headers=head.headers.raw_items(),
            stream=_RestOfAnswer(self, origin, line, request, told.get("read")),
        )

    def give_back(self, origin: Origin, line: _Line) -> None:
        """An exchange is over; the line is kept where both sides can go on."""
        protocol, idle = line.protocol, self._idle.setdefault(origin, [])
        if protocol.our_state is h11.DONE and protocol.their_state is h11.DONE and len(idle) < _MOST_IDLE:
            protocol.start_next_cycle()
            line.idle_since = trio.current_time()
            idle.append(line)
        else:
            line.close()

    async def aclose(self) -> None:
        for idle in self._idle.values():
            for line in idle:
                line.close()
        self._idle.clear()

    def _kept(self, origin: Origin) -> _Line | None:
        """The one that was used last: the others grow old, and go when they are met."""
        idle = self._idle.get(origin)
        while idle:
            line = idle.pop()
            if not line.is_stale:
                return line
            line.close()
        return None

    async def _connected(self, origin: Origin, request: httpx.Request, seconds: float | None) -> _Line:
        try:
            with trio.move_on_after(seconds if seconds is not None else float("inf")) as scope:
                return await _Line.connect(origin, self._trusted() if origin[0] == "https" else None)
        except (OSError, ValueError, trio.BrokenResourceError) as failure:  # ValueError: a name that cannot be encoded
            raise httpx.ConnectError(str(failure) or type(failure).__name__, request=request) from failure
        if not scope.cancelled_caught:
            raise AssertionError("a connection is there, or was refused, or took too long")
        raise httpx.ConnectTimeout("the server does not take the connection", request=request)

    def _trusted(self) -> ssl.SSLContext:
        """Made when it is needed: it reads every certificate that the machine trusts."""
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


def _origin(url: httpx.URL) -> Origin:
    if url.scheme not in ("http", "https"):
        raise httpx.UnsupportedProtocol(f"an address begins with http:// or https://, and not with {url.scheme}:")
    return url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)


def _raise(failure: BaseException, request: httpx.Request, otherwise: type[httpx.TransportError]) -> NoReturn:
    """As httpx names what happened to a connection; anything else as it is."""
    match failure:
        case httpx.RequestError():
            failure.request = request
            raise failure
        case h11.RemoteProtocolError():
            raise httpx.RemoteProtocolError(str(failure), request=request) from failure
        case h11.LocalProtocolError():
            raise httpx.LocalProtocolError(str(failure), request=request) from failure
        case trio.BrokenResourceError() | trio.ClosedResourceError() | ssl.SSLError() | OSError():
            raise otherwise(str(failure) or type(failure).__name__, request=request) from failure
        case _:
            raise failure
