"""Parse request heads and chunked bodies with httptools.

httptools rejects bare CR and LF, folded lines, malformed field names and values, signs and lists in Content-Length,
repeated lengths, malformed chunks and other syntax errors. httptools accepts more than this server does, so this
module also rejects:

- a version other than 1.1 and 1.0 (httptools accepts HTTP/2.0, HTTP/0.9, RTSP/1.0 and ICE/1.0)
- a method outside KNOWN_METHODS (httptools knows about forty more, from PROPFIND to SOURCE)
- a request line with several spaces in a row, or anything before the request line (httptools skips both)
- an absolute address without a host, with a user or with a fragment
- HTTP/1.1 with no Host or several, HTTP/1.0 with several
- Transfer-Encoding that is not `chunked`, comes with Content-Length, or is in HTTP/1.0
- a head above MAX_HEAD_BYTES or MAX_HEADERS
- chunks with more framing than MAX_FRAMING_PER_BYTE allows

Upgrades are ignored, as RFC 9110 allows. If a request has an upgrade, httptools ends the message after the head and
does not read a body. So `HeadParser` parses only heads, and bodies are read separately. Chunk extensions are ignored,
and count as framing (RFC 9112, section 7.1.1).
"""

import re
from typing import Final

import attrs
import httptools

from common.api import limits

KNOWN_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS"})
# Maximum bytes of framing per byte of a chunked body. A chunk of one byte needs five bytes of framing.
MAX_FRAMING_PER_BYTE: Final = 8
HEAD_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) [!-~]+ HTTP/([0-9])\.([0-9])\r\n")
_ABSOLUTE_TARGET: Final = re.compile(rb"https?://([^/?#]*)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(rb"([A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_HTTP_SCHEME: Final = re.compile(rb"https?:", re.IGNORECASE)
_CONTENT_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_INTERPRETED_HEADERS: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


class MalformedRequest(Exception):
    """Error for a request that is not valid HTTP. The server answers with `status` and closes the connection."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@attrs.define(slots=True)
class RequestHead:
    """Head of a request. `length` is the body's size, or None for a chunked body. `is_last` is True if the connection
    closes after this request."""

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    is_last: bool
    expects_continue: bool


class HeadParser:
    """Parses the request heads of one connection."""

    def __init__(self) -> None:
        self._parser: httptools.HttpRequestParser | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""

    def parse(self, head: bytes) -> RequestHead:
        """Parse a head that ends with an empty line. Raise MalformedRequest if this server does not accept the head."""
        if len(head) > limits.MAX_HEAD_BYTES or head.count(b"\r\n") - 2 > limits.MAX_HEADERS:
            raise MalformedRequest(431)
        headers = self._headers = []
        parser = self._parser or httptools.HttpRequestParser(self)
        self._parser = None
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            raise MalformedRequest(_rejection_status(head)) from None
        method = parser.get_method()
        line = b"%s %s HTTP/1." % (method, self._target)
        version = head[len(line) : len(line) + 3]
        if method not in KNOWN_METHODS or not head.startswith(line) or version not in (b"1\r\n", b"0\r\n"):
            raise MalformedRequest(_rejection_status(head))
        request = _build_request_head(method.decode(), self._target, "1.1" if version == b"1\r\n" else "1.0", headers)
        # Reuse the parser only after a head without a body. Otherwise the parser would wait for the body.
        if request.length == 0:
            self._parser = parser
        return request

    def on_url(self, url: bytes) -> None:
        self._target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.strip(b" \t")))


class ChunkedBody:
    """Decodes one chunked body. `ended` becomes True after the last byte of the body."""

    def __init__(self) -> None:
        self.ended = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)
        self._pieces: list[bytes] = []
        self._fed = 0
        self._decoded = 0
        self._tail = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the decoded bytes, and the bytes after the end of the body. Raise MalformedRequest for bad chunks.

        httptools does not report where in the data the message ends. The end always follows an empty line, so the
        parser gets the data in pieces that end with an empty line.
        """
        # Search from the end of the previous data, because an empty line may begin there.
        recent = self._tail + data
        at, found = len(self._tail), 0
        while at < len(recent) and not self.ended:
            found = recent.find(HEAD_END, found) + len(HEAD_END)
            if found < len(HEAD_END):
                found = len(recent)
            self._feed(recent[at:found])
            at = found
        self._tail = recent[-3:]
        decoded = b"".join(self._pieces)
        self._pieces.clear()
        return decoded, recent[at:]

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise MalformedRequest(400) from None
        self._fed += len(data)
        framing = self._fed - self._decoded
        if framing > limits.MAX_HEAD_BYTES + MAX_FRAMING_PER_BYTE * self._decoded:
            raise MalformedRequest(400)

    def on_body(self, body: bytes) -> None:
        self._decoded += len(body)
        self._pieces.append(body)

    def on_message_begin(self) -> None:
        if self.ended:
            raise MalformedRequest(400)

    def on_message_complete(self) -> None:
        self.ended = True


def _build_request_head(method: str, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> RequestHead:
    path = path_and_query_of(target)
    is_1_1 = version == "1.1"
    hosts, length, last, expects_continue = 0, b"0", not is_1_1, False
    framed = chunked = False
    for name, value in headers:
        if name not in _INTERPRETED_HEADERS:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"connection":
            last = last or b"close" in [word.strip() for word in value.lower().split(b",")]
        elif name == b"expect":
            expects_continue = is_1_1 and value.lower() == b"100-continue"
        elif framed:
            raise MalformedRequest(400)
        elif name == b"content-length":
            framed, length = True, value
        else:
            framed = chunked = True
            if not is_1_1 or value.lower() != b"chunked":
                raise MalformedRequest(400)
    if path is None or hosts > 1 or (is_1_1 and not hosts) or not _CONTENT_LENGTH.fullmatch(length):
        raise MalformedRequest(400)
    return RequestHead(method, path, version, headers, None if chunked else int(length), last, expects_continue)


def check_partial_head(head: bytes | bytearray) -> None:
    """Raise MalformedRequest for the beginning of a head that no further bytes can make valid."""
    if len(head) > limits.MAX_HEAD_BYTES:
        raise MalformedRequest(431)
    if head[0] <= ord(" ") or head.count(b"\n") != head.count(b"\r\n"):
        raise MalformedRequest(400)


def path_and_query_of(target: bytes) -> bytes | None:
    """Return the path and query of a target, or None for an absolute address without a host, with a user or with a
    fragment.

    Proxies send absolute addresses, and a server must accept absolute addresses. The host of the address is ignored.
    """
    if target.startswith(b"/") or not _HTTP_SCHEME.match(target):
        return target
    parts = _ABSOLUTE_TARGET.fullmatch(target)
    if parts is None or not _AUTHORITY.fullmatch(parts[1]):
        return None
    return (parts[2] or b"/") + (parts[3] or b"")


def _rejection_status(head: bytes) -> int:
    """Return the status of the response to a rejected head: 400, 405 or 505."""
    line = _REQUEST_LINE.match(head)
    if line is None:
        return 400
    method, major, minor = line.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        return 505
    return 400 if method in KNOWN_METHODS else 405
