"""One request and its response: the ASGI side of a connection.

A response is framed by Content-Length if the application sets this header. Otherwise an HTTP/1.1 response is sent in
chunks, and an HTTP/1.0 response ends with the connection.
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
from coordinatord.http.bodies import ClientDisconnected
from coordinatord.http.cors import Origins
from coordinatord.http.middleware import new_request_id
from coordinatord.http.server.heads import KNOWN_METHODS, ChunkedBody, MalformedRequest, RequestHead

if TYPE_CHECKING:
    from coordinatord.http.server.connection import ClientConnection

log = structlog.get_logger(__name__)

SocketAddress = tuple[str, int] | None

# Maximum size of a received body piece, and of the data that may stay unsent before a writer waits.
MAX_PIECE_BYTES: Final = 1 << 16
_TOKEN_CHARACTER: Final = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]"
# Possessive quantifiers prevent backtracking.
_FIELD_LINES: Final = re.compile(rb"(?:" + _TOKEN_CHARACTER + rb"++:[\t -~\x80-\xff]*+\r\n)*+")
_ORIGIN_FIELD: Final = re.compile(rb"^origin:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_ALLOWED_METHODS: Final = ", ".join(sorted(method.decode() for method in KNOWN_METHODS))
_BODILESS_STATUSES: Final = frozenset({204, 304})


class InvalidResponse(Exception):
    """Error for ASGI messages of the application that do not form a valid HTTP response."""


class ServerState:
    """State shared by all connections. `origins` are allowed to read responses that the server sends without calling
    `app`. While `is_stopping` is True, each connection ends after its next response."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self.app = app
        self.is_stopping = False
        self._origins = origins

    def encode_refusal(self, fault: MalformedRequest, head: bytes) -> bytes:
        """Return the response to a request that could not be read. The connection must close after the response."""
        if fault.status == 405:
            return self.encode_last_response(responses.method_not_allowed(_ALLOWED_METHODS), head)
        return self.encode_last_response(responses.malformed_http(fault.status), head)

    def encode_last_response(self, response: responses.Response, head: bytes) -> bytes:
        """Return a response that does not come from the application. The connection ends after the response."""
        origin = _ORIGIN_FIELD.search(head)
        headers = (
            *response.headers,
            (b"x-request-id", new_request_id().encode()),
            (b"connection", b"close"),
            (b"content-length", str(len(response.body)).encode()),
            *self._origins.headers(origin[1] if origin else None),
        )
        fields = b"".join(b"%s: %s\r\n" % header for header in headers) + _format_date(int(time.time()))
        body = b"" if head.startswith(b"HEAD ") else response.body
        return b"HTTP/1.1 %d \r\n%s\r\n%s" % (response.status, fields, body)


class Exchange:
    """Serves one request: receives its body, calls the application and sends the response."""

    def __init__(
        self, connection: "ClientConnection", request: RequestHead, raw_head: bytes, server_state: ServerState
    ) -> None:
        self._connection = connection
        self._request = request
        self._raw_head = raw_head
        self._server_state = server_state
        self._chunks = ChunkedBody() if request.length is None else None
        # Bytes of the request's body that are not read yet.
        self._unread_body_bytes = request.length or 0
        # True when the application has received the whole body.
        self._request_complete = False
        self._must_send_continue = request.expects_continue
        # Response head, kept until the first bytes of the body.
        self._head = b""
        self._status = 0
        # Bytes of the response's body that are not sent yet, or None without a content length.
        self._unsent_body_bytes: int | None = 0
        self._is_chunked = False
        self._must_close = request.is_last
        self._response_complete = False

    async def run(self, scope: Scope) -> bool:
        """Serve the request. Return True if the connection can serve another request."""
        try:
            await self._server_state.app(scope, self._receive, self._send)
        except ClientDisconnected:
            pass
        except Exception:
            # Part of the response may have been sent, so the connection ends.
            log.exception("handler failed")
        if not self._status and not self._connection.input_has_ended:
            await self._send_last_response(
                self._server_state.encode_last_response(responses.internal_error(), self._raw_head)
            )
        if not self._response_complete or self._must_close or not self._has_rest_arrived():
            return False
        if self._unread_body_bytes:
            await self._connection.read(self._unread_body_bytes)
        return True

    async def _receive(self) -> Message:
        if self._request_complete:
            await self._connection.wait_until_ended()
            return {"type": "http.disconnect"}
        if self._chunks is None and not self._unread_body_bytes:
            self._request_complete = True
            return {"type": "http.request", "body": b"", "more_body": False}
        if self._must_send_continue:
            self._must_send_continue = False
            if not self._connection.unread_bytes and not self._status:
                await self._connection.write(b"HTTP/1.1 100 \r\n\r\n")
        if self._chunks is not None:
            piece = await self._read_chunks(self._chunks)
        else:
            piece = await self._connection.read(min(self._unread_body_bytes, MAX_PIECE_BYTES))
            self._unread_body_bytes -= len(piece)
            self._request_complete = not self._unread_body_bytes
        if not piece and not self._request_complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": not self._request_complete}

    async def _read_chunks(self, chunks: ChunkedBody) -> bytes:
        """Return the next bytes of a chunked body. Return b"" at the end, on disconnect and on malformed chunks."""
        piece = b""
        while not piece and not self._request_complete:
            data = await self._connection.read(MAX_PIECE_BYTES)
            if not data:
                return b""
            try:
                piece, rest = chunks.feed(data)
            except MalformedRequest as fault:
                self._must_close = True
                if not self._status:
                    await self._send_last_response(self._server_state.encode_refusal(fault, self._raw_head))
                return b""
            self._connection.put_back(rest)
            self._request_complete = chunks.ended
        return piece

    def _has_rest_arrived(self) -> bool:
        """Return True when the rest of the request's body has arrived and can be skipped."""
        return self._request_complete or (
            self._chunks is None and self._unread_body_bytes <= self._connection.unread_bytes
        )

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if self._response_complete and self._must_close:
            # The connection closes: nothing can be sent after a complete response or a rejection.
            raise ClientDisconnected
        if kind == "http.response.body" and self._status and not self._response_complete:
            await self._send_body(message.get("body", b""), more=message.get("more_body", False))
        elif kind == "http.response.start" and not self._status:
            self._head = self._encode_head(message["status"], message.get("headers", ()))
            self._status = message["status"]
        else:
            raise InvalidResponse(
                f"the application sent {kind} out of order: send one http.response.start, then each http.response.body"
            )

    def _encode_head(self, status: int, headers: Any) -> bytes:
        """Return the response head. Raise InvalidResponse for a malformed header."""
        written = []
        length: int | None = None
        closes = False
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                closes = b"close" in value.lower()
            elif name == b"transfer-encoding":
                raise InvalidResponse("the application must not set transfer-encoding, which the server sets")
            written.append(b"%s: %s\r\n" % (name.strip(), value.strip()))
        fields = b"".join(written)
        if fields.count(b"\r\n") != len(written) or not _FIELD_LINES.fullmatch(fields):
            raise InvalidResponse(
                "a response header has an invalid name, or a value with a line break or control character"
            )
        fields += _format_date(int(time.time()))
        has_body = status not in _BODILESS_STATUSES
        self._unsent_body_bytes = length if has_body and self._request.method != "HEAD" else 0
        if length is None and has_body and self._request.version == "1.1":
            self._is_chunked = self._unsent_body_bytes is None
            fields += b"transfer-encoding: chunked\r\n"
        if closes or self._server_state.is_stopping or not self._has_rest_arrived():
            self._must_close = True
        if self._must_close and not closes:
            fields += b"connection: close\r\n"
        return b"HTTP/1.1 %d \r\n%s\r\n" % (status, fields)

    async def _send_body(self, data: bytes, *, more: bool) -> None:
        if self._request.method == "HEAD" or self._status in _BODILESS_STATUSES:
            data = b""
        if self._is_chunked:
            piece = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
            if not more:
                piece += b"0\r\n\r\n"
        else:
            if self._unsent_body_bytes is not None:
                if len(data) > self._unsent_body_bytes:
                    raise InvalidResponse("the response body is longer than its content-length")
                self._unsent_body_bytes -= len(data)
            piece = data
        if piece or not more:
            head, self._head = self._head, b""
            await self._connection.write(head + piece, more=more)
        if not more:
            if self._unsent_body_bytes:
                raise InvalidResponse("the response body is shorter than its content-length")
            self._response_complete = True

    async def _send_last_response(self, response: bytes) -> None:
        self._status, self._must_close, self._response_complete = 500, True, True
        try:
            await self._connection.write(response)
        except ClientDisconnected:
            return


def build_asgi_scope(request: RequestHead, client: SocketAddress, server: SocketAddress) -> Scope:
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
def _format_date(second: int) -> bytes:
    return b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
