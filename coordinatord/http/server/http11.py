"""HTTP/1.1 as hypercorn speaks it, and nothing else.

Hypercorn would follow an upgrade to HTTP/2 or WebSocket on a connection in clear, through which a caller gets past the
rules of the proxy in front; a message that gives its length in two ways is read by one of them, where that proxy may
have read it by the other; it takes lines that end or go on in ways that others read differently; and its own refusals
have no body. Here no upgrade is taken, such messages are refused, and every refusal has the envelope that all errors
have, with the headers that let an allowed origin read it.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final

import h11
import structlog
from h11 import LocalProtocolError
from h11._receivebuffer import ReceiveBuffer, blank_line_regex
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol.events import Body, EndBody, Event, Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import (
    AppWrapper,
    ASGIReceiveEvent,
    ASGISendEvent,
    ConnectionState,
    Scope,
    TaskGroup,
    WorkerContext,
)

from common.api import limits
from coordinatord.http.bodies import CallerGone
from coordinatord.http.middleware import Origins, new_request_id
from coordinatord.http.responses import malformed_http

log = structlog.get_logger(__name__)


class StrictLines(ReceiveBuffer):
    """Receive buffer that takes the lines of heads and trailers as RFC 9112 writes them, and in no other way.

    h11 also ends a line at a bare LF and joins folded ones. A proxy in front may see other headers in such a message,
    and a header that only one of two servers sees is how requests are smuggled past the first. `head`: the latest lines
    that were taken together, as they came.
    """

    def __init__(self) -> None:
        super().__init__()
        self.head = bytearray()

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Up to the first blank line; None until that is there."""
        data = self._data
        if data.startswith(b"\r\n"):
            self._extract(2)
            return []
        if data.startswith(b"\n"):
            raise LocalProtocolError("a line must end with CR LF")
        blank = blank_line_regex.search(data, self._multiple_lines_search)  # to h11, bare LFs are one, too
        if blank is None:
            self.head = bytearray()
            self._multiple_lines_search = max(0, len(data) - 2)
            return None
        self.head = lines = self._extract(blank.end())
        ended = lines.count(b"\r\n")
        if lines.count(b"\n") != ended or lines.count(b"\r") != ended:
            raise LocalProtocolError("a line must end with CR LF, and hold neither of them before")
        if b"\n " in lines or b"\n\t" in lines:
            raise LocalProtocolError("a header must stand on one line")
        return lines[:-4].split(b"\r\n")


_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(rb"([A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_WITH_SCHEME: Final = re.compile(rb"https?:", re.IGNORECASE)


def path_of(target: bytes) -> bytes | None:
    """Path and query of a request's target, in whichever form of RFC 9112 it came. None for a whole address that is
    none: without a host, or with a user's name in it.

    A whole address is what a proxy sends, and a server must take it. Whose name it has there does not matter: whatever
    reaches this server is for it.
    """
    if target.startswith(b"/") or not _WITH_SCHEME.match(target):
        return target
    parts = _ABSOLUTE.fullmatch(target)
    if parts is None or not _AUTHORITY.fullmatch(parts[1]):
        return None
    return (parts[2] or b"/") + (parts[3] or b"")


_LEAST: Final = 1 << 12  # bytes that a piece counts for
_ENOUGH: Final = 1 << 18  # bytes; what comes after them waits in the socket

Send = Callable[[ASGISendEvent | None], Awaitable[None]]


class Inbox:
    """Messages that a request's handler has still to receive: the pieces of its body, and that its caller is gone.

    A queue with one reader. It holds nobody up once the handler has ended, or to say that the caller is gone: with a
    bounded queue, a handler that answers without reading its body would leave the connection waiting for ever.
    """

    def __init__(self) -> None:
        self._messages: deque[ASGIReceiveEvent] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._ended = False

    async def put(self, message: ASGIReceiveEvent) -> None:
        while self._size >= _ENOUGH and not self._ended and message["type"] == "http.request":
            await self._change()
        if not self._ended:
            self._messages.append(message)
            self._size += _weight_of(message)
            self._changed.set()

    async def get(self) -> ASGIReceiveEvent:
        while not self._messages:
            await self._change()
        message = self._messages.popleft()
        self._size -= _weight_of(message)
        self._changed.set()
        return message

    def end(self) -> None:
        """Nobody will read any more."""
        self._ended = True
        self._messages.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _weight_of(message: ASGIReceiveEvent) -> int:
    """Share of `_ENOUGH` that a message takes: a body that comes in chunks of one byte weighs far more than its
    bytes."""
    return max(len(message["body"]), _LEAST) if message["type"] == "http.request" else 0


class Handlers:
    """Handlers of one connection's requests: hypercorn's task group. Left when every handler has ended."""

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> "Handlers":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: TracebackType | None) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    async def spawn_app(
        self, app: AppWrapper, _: Config, scope: Scope, send: Send
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start a handler. What it is to receive goes to the function that this returns."""
        inbox = Inbox()
        self._tasks.create_task(_handle(app, scope, inbox, send))
        return inbox.put

    def spawn(self, func: Callable[..., Any], *args: Any) -> None:
        self._tasks.create_task(func(*args))


async def _handle(app: AppWrapper, scope: Scope, inbox: Inbox, send: Send) -> None:
    try:
        await app(scope, inbox.get, send, _not_offered, _not_offered)
    except CallerGone:
        pass  # it left while the answer was on its way
    except Exception:
        log.exception("handler failed")  # half an answer is out: the connection ends in the midst of it
    finally:
        inbox.end()
        await send(None)


def _not_offered(*_: object) -> None:
    raise TypeError("WSGI applications are not served")


_VERSIONS: Final = (b"1.1", b"1.0")
_SMALL: Final = 1 << 16  # head and body up to this size leave in one piece
_ORIGIN: Final = re.compile(rb"^origin:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)

Address = tuple[str, int] | None


class Http11(H11Protocol):
    """One connection's requests, one after another. What it has to say goes to `send`."""

    connection: h11.Connection

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        *,
        handlers: TaskGroup,
        peers: tuple[Address, Address],
        origins: Origins,
        send: Callable[[ConnectionEvent], Awaitable[None]],
    ) -> None:
        """`peers`: the client's address and ours."""
        super().__init__(app, config, context, handlers, ConnectionState({}), False, *peers, send)
        self._lines = self.connection._receive_buffer = StrictLines()
        self._origins = origins
        self._unsent = b""
        self._method = b""  # of the latest request

    @property
    def rests(self) -> bool:
        """Between two messages, with no byte of the next."""
        states = self.connection.our_state, self.connection.their_state
        return states == (h11.IDLE, h11.IDLE) and not self._lines

    async def stream_send(self, event: Event) -> None:
        """The head of an answer waits for the body that follows it at once: both cost one system call."""
        match event:
            case Response() if event.status_code >= 200:
                headers = [*event.headers, *self.config.response_headers("h11")]
                last = self.context.terminated.is_set() or self.connection.their_state is h11.SEND_BODY
                if last and (b"connection", b"close") not in headers:
                    headers.append((b"connection", b"close"))  # before the client sends its next request in vain
                self._unsent += self._bytes_of(h11.Response(headers=headers, status_code=event.status_code))
            case Body():
                piece = self._bytes_of(h11.Data(data=event.data))
                if len(piece) > _SMALL:
                    await self._flush()
                self._unsent += piece  # the same object when there was nothing before it
                await self._flush()
            case EndBody():
                self._unsent += self._bytes_of(h11.EndOfMessage())
                await self._flush()
            case _:
                await super().stream_send(event)

    async def _flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if unsent:
            await self.send(RawData(unsent))

    def _bytes_of(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> bytes:
        try:
            return self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return b""  # their message broke off; nothing can be said any more

    async def _check_protocol(self, event: h11.Request) -> None:
        """Hypercorn looks here whether to upgrade."""

    async def _create_stream(self, request: h11.Request) -> None:
        self._method = request.method
        target = path_of(request.target)
        status = _refusal(request, self.config.h11_max_incomplete_size)
        if status is not None or target is None:
            await self._send_error_response(status or 400)
            await self.send(Closed())
            return
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii"),  # hypercorn would write HEAd as HEAD, which h11 does not
                raw_path=target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        """Answer to a message that could not be read. It ends the connection: nobody knows where the next message would
        begin."""
        answer = malformed_http(status_code)
        request_id = new_request_id().encode()
        headers = [*answer.headers, (b"x-request-id", request_id), (b"connection", b"close")]
        headers.append((b"content-length", str(len(answer.body)).encode()))
        headers += self._origins.headers(self._origin())
        headers += self.config.response_headers("h11")
        await self.send(Updated(idle=False))
        answers_head = self.connection.our_state is h11.SEND_RESPONSE and self._method == b"HEAD"
        self._unsent += self._bytes_of(h11.Response(headers=headers, status_code=status_code))
        if not answers_head:
            self._unsent += self._bytes_of(h11.Data(data=answer.body))
        self._unsent += self._bytes_of(h11.EndOfMessage())
        await self._flush()

    def _origin(self) -> bytes | None:
        """Which page asked, from the text of a head that may be no head."""
        found = _ORIGIN.search(self._lines.head or bytes(self._lines))
        return found[1] if found else None


def _refusal(request: h11.Request, longest_head: int) -> int | None:
    """The status that refuses this message before anything reads it, if it has to be."""
    if request.http_version not in _VERSIONS:
        return 505
    # h11 keeps to the size only while a head comes in pieces; each header costs as much as a hundred bytes.
    names = [name for name, _ in request.headers]
    if len(names) > limits.HEAD_FIELDS or _size_of(request) > longest_head:
        return 431
    return 400 if b"content-length" in names and b"transfer-encoding" in names else None


def _size_of(request: h11.Request) -> int:
    return len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
