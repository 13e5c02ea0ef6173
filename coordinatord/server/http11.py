"""HTTP/1.1 as hypercorn speaks it, and nothing else.

Hypercorn would follow an upgrade to HTTP/2 or WebSocket on a connection in clear, through which a caller gets past the
rules of the proxy in front; a message that gives its length in two ways is read by one of them, where that proxy may
have read it by the other; it takes lines that end or go on in ways that others read differently; and its own refusals
have no body. Here no upgrade is taken, such messages are refused, and every refusal has the envelope that all errors
have, with the headers that let an allowed origin read it.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final

import h11
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol.events import Body, EndBody, Event, Request, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext

from coordinatord.api.answers import malformed_http
from coordinatord.api.cors import Origins
from coordinatord.api.frame import new_request_id
from coordinatord.server.strict_lines import StrictLines
from coordinatord.server.targets import path_of

_VERSIONS: Final = (b"1.1", b"1.0")
_SMALL: Final = 1 << 16  # head and body up to this size leave in one piece
_MOST_HEADERS: Final = 100
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

    async def stream_send(self, event: Event) -> None:
        """The head of an answer waits for the body that follows it at once: both cost one system call."""
        match event:
            case Response() if event.status_code >= 200:
                headers = [*event.headers, *self.config.response_headers("h11")]
                if self.context.terminated.is_set():
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
                method=request.method.decode("ascii").upper(),
                raw_path=target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _send_error_response(self, status_code: int) -> None:
        """What is no request that we could read. The connection ends with it: where the next message would begin is
        not known."""
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
    if len(names) > _MOST_HEADERS or _size_of(request) > longest_head:
        return 431
    return 400 if b"content-length" in names and b"transfer-encoding" in names else None


def _size_of(request: h11.Request) -> int:
    return len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
