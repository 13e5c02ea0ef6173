"""One request and its response: the ASGI side of a connection.

Responses are framed by Content-Length where the application gives one, by chunks in HTTP/1.1 otherwise, and by the end
of the connection in HTTP/1.0.
"""

import re
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import structlog

from common.daemon.asgi import ASGIApp, Message, Scope
from coordinatord.http import responses
from coordinatord.http.bodies import CallerDisconnected
from coordinatord.http.cors import Origins
from coordinatord.http.middleware import new_request_id
from coordinatord.http.server.heads import KNOWN_METHODS, ChunkedBody, Malformed, RequestHead

if TYPE_CHECKING:
    from coordinatord.http.server.connection import ClientConnection

log = structlog.get_logger(__name__)

Address = tuple[str, int] | None

# Size of body pieces, received or sent.
PIECE_BYTES: Final = 1 << 16
_TOKEN: Final = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]"
# Possessive, so no backtracking.
_FIELDS: Final = re.compile(rb"(?:" + _TOKEN + rb"++:[\t -~\x80-\xff]*+\r\n)*+")
_ORIGIN: Final = re.compile(rb"^origin:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_ALLOWED: Final = ", ".join(sorted(method.decode() for method in KNOWN_METHODS))
_BODILESS: Final = frozenset({204, 304})


class InvalidResponse(Exception):
    """The application sent messages that are not an HTTP response."""


class Service:
    """State shared by all connections. `origins` sets the CORS headers of responses that the server makes without
    calling `app`. Once `stopping` is set, each response is the last of its connection."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self.app = app
        self.stopping = False
        self._origins = origins

    def refusal(self, fault: Malformed, head: bytes) -> bytes:
        """Return the response to a request that could not be read. The connection must close after it."""
        if fault.status == 405:
            return self.last_response(responses.method_not_allowed(_ALLOWED), head)
        return self.last_response(responses.malformed_http(fault.status), head)

    def last_response(self, answer: responses.Response, head: bytes) -> bytes:
        """Return a response that the application did not make and that ends the connection."""
        origin = _ORIGIN.search(head)
        headers = (
            *answer.headers,
            (b"x-request-id", new_request_id().encode()),
            (b"connection", b"close"),
            (b"content-length", str(len(answer.body)).encode()),
            *self._origins.headers(origin[1] if origin else None),
        )
        fields = b"".join(b"%s: %s\r\n" % header for header in headers) + _date(int(time.time()))
        body = b"" if head.startswith(b"HEAD ") else answer.body
        return b"HTTP/1.1 %d \r\n%s\r\n%s" % (answer.status, fields, body)


class Exchange:
    """One request and its response."""

    def __init__(self, connection: "ClientConnection", request: RequestHead, raw_head: bytes, service: Service) -> None:
        self._connection = connection
        self._request = request
        self._raw_head = raw_head
        self._service = service
        self._chunks = ChunkedBody() if request.length is None else None
        # Unread bytes of the request's body.
        self._left_in = request.length or 0
        # The application has received the whole body.
        self._received = False
        self._must_continue = request.expects_continue
        # Response head, kept until the first bytes of the body.
        self._head = b""
        self._status = 0
        # Unsent bytes of the response's body. None without a content length.
        self._left_out: int | None = 0
        self._is_chunked = False
        self._last = request.last
        self._done = False

    async def run(self, scope: Scope) -> bool:
        """Serve the request. Return True if the connection can take another one."""
        try:
            await self._service.app(scope, self._receive, self._send)
        except CallerDisconnected:
            pass
        except Exception:
            # Part of the response may have been sent, so the connection ends.
            log.exception("handler failed")
        if not self._status and not self._connection.ended:
            await self._end_with(self._service.last_response(responses.internal_error(), self._raw_head))
        if not self._done or self._last or not self._is_body_here():
            return False
        if self._left_in:
            await self._connection.read(self._left_in)
        return True

    async def _receive(self) -> Message:
        if self._received:
            await self._connection.until_ended()
            return {"type": "http.disconnect"}
        if self._chunks is None and not self._left_in:
            self._received = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if self._must_continue:
            self._must_continue = False
            if not self._connection.unread and not self._status:
                await self._connection.write(b"HTTP/1.1 100 \r\n\r\n")
        if self._chunks is not None:
            piece = await self._read_chunks(self._chunks)
        else:
            piece = await self._connection.read(min(self._left_in, PIECE_BYTES))
            self._left_in -= len(piece)
            self._received = not self._left_in
        if not piece and not self._received:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": not self._received}

    async def _read_chunks(self, chunks: ChunkedBody) -> bytes:
        """Return the next bytes of a chunked body, or b"" at its end, on disconnect and on malformed chunks."""
        piece = b""
        while not piece and not self._received:
            data = await self._connection.read(PIECE_BYTES)
            if not data:
                return b""
            try:
                piece, rest = chunks.feed(data)
            except Malformed as fault:
                self._last = True
                if not self._status:
                    await self._end_with(self._service.refusal(fault, self._raw_head))
                return b""
            self._connection.put_back(rest)
            self._received = chunks.ended
        return piece

    def _is_body_here(self) -> bool:
        """Return True when the rest of the request's body has arrived and can be skipped."""
        return self._received or (self._chunks is None and self._left_in <= self._connection.unread)

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if self._done and self._last:
            # The request was rejected, or the response is complete.
            raise CallerDisconnected
        if kind == "http.response.body" and self._status and not self._done:
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))
        elif kind == "http.response.start" and not self._status:
            self._head = self._head_of(message["status"], message.get("headers", ()))
            self._status = message["status"]
        else:
            raise InvalidResponse(f"{kind} must come after http.response.start, and before the end of the response")

    def _head_of(self, status: int, headers: Any) -> bytes:
        """Return the response head. Raise InvalidResponse for a malformed header."""
        written = []
        length: int | None = None
        says_close = False
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                says_close = b"close" in value.lower()
            elif name == b"transfer-encoding":
                raise InvalidResponse("the server chooses the coding of a response")
            written.append(b"%s: %s\r\n" % (name.strip(), value.strip()))
        fields = b"".join(written)
        if fields.count(b"\r\n") != len(written) or not _FIELDS.fullmatch(fields):
            raise InvalidResponse("a header must be a name and a value on one line")
        fields += _date(int(time.time()))
        has_body = status not in _BODILESS
        self._left_out = length if has_body and self._request.method != "HEAD" else 0
        if length is None and has_body and self._request.version == "1.1":
            self._is_chunked = self._left_out is None
            fields += b"transfer-encoding: chunked\r\n"
        if says_close or self._service.stopping or not self._is_body_here():
            self._last = True
        if self._last and not says_close:
            fields += b"connection: close\r\n"
        return b"HTTP/1.1 %d \r\n%s\r\n" % (status, fields)

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        if self._request.method == "HEAD" or self._status in _BODILESS:
            data = b""
        if self._is_chunked:
            piece = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
            if not more:
                piece += b"0\r\n\r\n"
        else:
            if self._left_out is not None:
                if len(data) > self._left_out:
                    raise InvalidResponse("a body must not be longer than its content-length")
                self._left_out -= len(data)
            piece = data
        if piece or not more:
            head, self._head = self._head, b""
            await self._connection.write(head + piece, more=more)
        if not more:
            if self._left_out:
                raise InvalidResponse("a body must not be shorter than its content-length")
            self._done = True

    async def _end_with(self, response: bytes) -> None:
        self._status, self._last, self._done = 500, True, True
        try:
            await self._connection.write(response)
        except CallerDisconnected:
            return


def scope_of(request: RequestHead, client: Address, server: Address) -> Scope:
    path, _, query = request.target.partition(b"?")
    text = path.decode("ascii")
    return {
        "type": "http",
        "http_version": request.version,
        "asgi": {"spec_version": "2.1", "version": "3.0"},
        "method": request.method,
        "scheme": "http",
        "path": unquote(text) if "%" in text else text,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": request.headers,
        "client": client,
        "server": server,
        "state": {},
        "extensions": {},
    }


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
