"""Plain requests, which nearly all are: read by one regular expression, and answered without hypercorn and h11.

A head is plain when it is here as a whole and one look decides that every server reads the same in it: a method and a
path, HTTP/1.1, one host, lines that end in CR LF, no coding, no upgrade, nothing that asks for the connection's end, at
most one length. Of such a head, h11 would make the same request. Whatever is not plain, the beginning of a head among
it, is h11's (`http11.py`): it finds what to refuse, and is the only one that does.

An answer is written as h11 writes it, byte for byte; head and body leave together.
"""

import re
import time
from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import unquote

import anyio
import attrs
import structlog
from h11 import LocalProtocolError
from hypercorn.config import Config
from starlette.types import ASGIApp, Message, Scope

from common.api import limits
from coordinatord.http.bodies import CallerGone

log = structlog.get_logger(__name__)

_LONGEST: Final = limits.HEAD_BYTES // 2  # a longer head is h11's to measure
_SMALL: Final = 1 << 16  # head and body up to this size leave in one piece
_ENOUGH: Final = 1 << 18  # bytes of further requests, while one is answered; what comes after them waits in the socket

# Nothing in it can match in two ways, so that nothing is tried twice: `++` and `*+` give nothing back.
_FIELDS: Final = rb"(?:[-!#$%&'*+.^_`|~0-9a-zA-Z]++:[\t -~\x80-\xff]*+\r\n)"
_HEAD: Final = re.compile(
    rb"(GET|HEAD|POST|PUT|DELETE|PATCH|OPTIONS) (/[!-~]*+) HTTP/1\.1\r\n(" + _FIELDS + rb"++)\r\n"
)
_ANSWERED: Final = re.compile(_FIELDS + rb"*+")
_TELLING: Final = frozenset({b"host", b"content-length", b"connection", b"transfer-encoding", b"expect", b"upgrade"})
_LENGTH_DIGITS: Final = 15
_BODILESS: Final = frozenset({204, 304})


@attrs.frozen(slots=True)
class PlainRequest:
    """`head`: how many bytes of the message are its head, `body`: how many follow as its body."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    head: int
    body: int


def plain_request(data: bytes) -> PlainRequest | None:
    """The request that these bytes begin with; None where its head is not plain, or not whole."""
    found = _HEAD.match(data, 0, _LONGEST)
    if found is None:
        return None
    method, target, fields = found.groups()
    lines = fields[:-2].split(b"\r\n")
    if len(lines) > limits.HEAD_FIELDS:
        return None
    headers = []
    hosts, length = 0, None
    for line in lines:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        headers.append((name, value))
        if name not in _TELLING:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length" and length is None and value.isdigit() and len(value) <= _LENGTH_DIGITS:
            length = int(value)
        elif name != b"connection" or b"close" in value.lower():
            return None
    return PlainRequest(method.decode("ascii"), target, headers, found.end(), length or 0) if hosts == 1 else None


def scope_of(request: PlainRequest, client: object, server: object) -> Scope:
    """The request as hypercorn tells an application of it."""
    path, _, query = request.target.partition(b"?")
    text = path.decode("ascii")
    return {
        "type": "http",
        "http_version": "1.1",
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


class OwnHeaders:
    """The headers that hypercorn's configuration adds to every answer, made once a second: `date` is one of them."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._second = -1
        self._made = b""

    def get(self) -> bytes:
        second = int(self._clock())
        if second != self._second:
            self._made = _written(self._config.response_headers("h11"))
            self._second = second
        return self._made


class Wire(Protocol):
    """The connection under a request. `read` gives b"" when the client has closed its side, or is gone, which `ended`
    says as well; `write` raises CallerGone when nobody reads."""

    @property
    def ended(self) -> bool: ...

    async def read(self) -> bytes: ...

    async def write(self, data: bytes, more: bool = False) -> None: ...


class PlainExchange:
    """One request and its answer. `rest`: what came after the head and was not taken; after the exchange, what the next
    message begins with."""

    def __init__(
        self, wire: Wire, request: PlainRequest, rest: bytes, own: OwnHeaders, stopping: Callable[[], bool]
    ) -> None:
        self.rest = rest
        self._wire = wire
        self._own = own
        self._stopping = stopping
        self._head_only = request.method == "HEAD"
        self._unread = request.body
        self._heard = False  # the last of the body, which may be empty
        self._head: bytes | None = None  # of an answer that has begun and is not sent
        self._status = 0
        self._left: int | None = 0  # of the answer's body; None where its end is told when it comes
        self._last = False  # no further request is taken
        self._whole = False

    async def run(self, app: ASGIApp, scope: Scope) -> bool:
        """True when the connection takes another request."""
        try:
            await app(scope, self._receive, self._send)
        except CallerGone:
            pass  # it left while the answer was on its way
        except Exception:
            log.exception("handler failed")  # half an answer is out: the connection ends in the midst of it
        if not self._status and not self._wire.ended:
            await self._send_nothing()
        if self._unread <= len(self.rest):  # whoever answers without reading a body that is here has had it
            self.rest = self.rest[self._unread :] if self._unread else self.rest
        else:
            self._last = True
        return self._whole and not self._last

    async def _receive(self) -> Message:
        if not self._unread:
            if not self._heard:
                self._heard = True
                return {"type": "http.request", "body": b"", "more_body": False}
            return await self._until_gone()
        piece, self.rest = self.rest or await self._wire.read(), b""
        if not piece:
            return {"type": "http.disconnect"}
        if len(piece) > self._unread:
            piece, self.rest = piece[: self._unread], piece[self._unread :]
        self._unread -= len(piece)
        self._heard = not self._unread
        return {"type": "http.request", "body": piece, "more_body": not self._heard}

    async def _until_gone(self) -> Message:
        """Its caller's leaving is all that is left to hear."""
        while len(self.rest) < _ENOUGH:
            data = await self._wire.read()
            if not data:
                return {"type": "http.disconnect"}
            self.rest += data
        await anyio.sleep_forever()
        raise AssertionError("it sleeps for ever")

    async def _send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.body" and self._status and not self._whole:
            await self._body(message.get("body", b""), message.get("more_body", False))
        elif kind == "http.response.start" and not self._status:
            self._head = self._head_of(message["status"], message.get("headers", ()))
            self._status = message["status"]
        else:
            raise LocalProtocolError(f"{kind} must come after http.response.start, and before the end of the answer")

    def _head_of(self, status: int, headers: Any) -> bytes:
        """Raises LocalProtocolError for a header that is none."""
        written = []
        length: int | None = None
        for name, value in headers:
            written.append(b"%s: %s\r\n" % (name.strip(), value.strip()))
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                self._last = b"close" in value.lower()
            elif name == b"transfer-encoding":
                raise LocalProtocolError("an answer's coding is the server's to choose")
        fields = b"".join(written)
        if fields.count(b"\r\n") != len(written) or not _ANSWERED.fullmatch(fields):
            raise LocalProtocolError("an answer's header must be a name and a value on one line")
        bodiless = status in _BODILESS
        self._left = 0 if bodiless or self._head_only else length
        fields += self._own.get()
        if not self._last and (self._stopping() or self._unread > len(self.rest)):
            self._last = True
            fields += b"connection: close\r\n"  # before the client sends its next request in vain
        if length is None and not bodiless:
            fields += b"Transfer-Encoding: chunked\r\n"
        return b"HTTP/1.1 %d \r\n%s\r\n" % (status, fields)

    async def _body(self, data: bytes, more: bool) -> None:
        if self._head_only or self._status in _BODILESS:
            data = b""
        if self._left is None:
            piece = b"%x\r\n%s\r\n" % (len(data), data) if data else b""
            if not more:
                piece += b"0\r\n\r\n"
        else:
            if len(data) > self._left:
                raise LocalProtocolError("an answer's body must not be longer than its content-length")
            self._left -= len(data)
            piece = data
        if self._head is not None and (piece or not more):
            head, self._head = self._head, None
            if len(piece) > _SMALL:
                await self._wire.write(head, True)
            else:
                piece = head + piece
        if piece:
            await self._wire.write(piece, more)
        if not more:
            if self._left:
                raise LocalProtocolError("an answer's body must not be shorter than its content-length")
            self._whole = True

    async def _send_nothing(self) -> None:
        """The answer of an application that gave none."""
        self._status, self._last, self._whole = 500, True, True
        try:
            await self._wire.write(
                b"HTTP/1.1 500 \r\ncontent-length: 0\r\nconnection: close\r\n%s\r\n" % self._own.get()
            )
        except CallerGone:
            return


def _written(headers: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%s: %s\r\n" % header for header in headers)
