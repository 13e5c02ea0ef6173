"""Request heads and chunked bodies, parsed by httptools.

httptools refuses bare CR and LF, folded lines, malformed field names and values, signs and lists in Content-Length,
repeated lengths, malformed chunks and other faults of syntax. It accepts more than this server does, so this module
also refuses:

- a version other than 1.1 and 1.0 (httptools accepts HTTP/2.0, HTTP/0.9, RTSP/1.0 and ICE/1.0)
- a method outside KNOWN_METHODS (httptools knows about forty more, from PROPFIND to SOURCE)
- a request line with more than single spaces, or anything before the request line (httptools skips both)
- an absolute address without a host, with a user or with a fragment
- HTTP/1.1 without exactly one Host, HTTP/1.0 with more than one
- Transfer-Encoding other than `chunked`, with Content-Length, or in HTTP/1.0
- a head above HEAD_BYTES or HEAD_FIELDS
- chunks with more framing than MAX_FRAMING_PER_BYTE allows

Upgrades are ignored, as RFC 9110 allows: httptools would end the message at the head of such a request, so bodies are
never read by the parser of the head. Chunk extensions are ignored, and count as framing (RFC 9112, section 7.1.1).
"""

import re
from typing import Final

import attrs
import httptools

from common.api import limits

KNOWN_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS"})
# A chunk of one byte needs five bytes of framing.
MAX_FRAMING_PER_BYTE: Final = 8
HEAD_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) [!-~]+ HTTP/([0-9])\.([0-9])\r\n")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]*)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(rb"([A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_WITH_SCHEME: Final = re.compile(rb"https?:", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_READ_HERE: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


class Malformed(Exception):
    """The request is rejected with this status, and the connection ends."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@attrs.define(slots=True)
class RequestHead:
    """Head of a request. `length` is the body's size, or None when it is chunked. `last` means that no request
    follows."""

    method: str
    target: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    last: bool
    expects_continue: bool


class HeadParser:
    """Parser of the request heads of one connection."""

    def __init__(self) -> None:
        self._parser: httptools.HttpRequestParser | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._target = b""

    def parse(self, head: bytes) -> RequestHead:
        """Parse a head that ends with an empty line. Raise Malformed."""
        if len(head) > limits.HEAD_BYTES or head.count(b"\r\n") - 2 > limits.HEAD_FIELDS:
            raise Malformed(431)
        headers = self._headers = []
        parser = self._parser or httptools.HttpRequestParser(self)
        self._parser = None
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError:
            raise Malformed(_status_of(head)) from None
        method = parser.get_method()
        line = b"%s %s HTTP/1." % (method, self._target)
        version = head[len(line) : len(line) + 3]
        if method not in KNOWN_METHODS or not head.startswith(line) or version not in (b"1\r\n", b"0\r\n"):
            raise Malformed(_status_of(head))
        request = _request_of(method.decode(), self._target, "1.1" if version == b"1\r\n" else "1.0", headers)
        # Otherwise the parser waits for a body that it never gets.
        if request.length == 0:
            self._parser = parser
        return request

    def on_url(self, url: bytes) -> None:
        self._target = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.strip(b" \t")))


class ChunkedBody:
    """Decoder of one chunked body. `ended` is set after the last byte."""

    def __init__(self) -> None:
        self.ended = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)
        self._pieces: list[bytes] = []
        self._fed = 0
        self._decoded = 0
        self._tail = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the decoded bytes, and the bytes after the end of the body. Raise Malformed.

        httptools does not report where a message ends within its data. The end always follows an empty line, so the
        data is fed up to each empty line.
        """
        # An empty line may begin in the previous data.
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
            raise Malformed(400) from None
        self._fed += len(data)
        framing = self._fed - self._decoded
        if framing > limits.HEAD_BYTES + MAX_FRAMING_PER_BYTE * self._decoded:
            raise Malformed(400)

    def on_body(self, body: bytes) -> None:
        self._decoded += len(body)
        self._pieces.append(body)

    def on_message_begin(self) -> None:
        if self.ended:
            raise Malformed(400)

    def on_message_complete(self) -> None:
        self.ended = True


def _request_of(method: str, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> RequestHead:
    path = path_of(target)
    is_1_1 = version == "1.1"
    hosts, length, last, expects_continue = 0, b"0", not is_1_1, False
    framed = chunked = False
    for name, value in headers:
        if name not in _READ_HERE:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"connection":
            last = last or b"close" in [word.strip() for word in value.lower().split(b",")]
        elif name == b"expect":
            expects_continue = is_1_1 and value.lower() == b"100-continue"
        elif framed:
            raise Malformed(400)
        elif name == b"content-length":
            framed, length = True, value
        else:
            framed = chunked = True
            if not is_1_1 or value.lower() != b"chunked":
                raise Malformed(400)
    if path is None or hosts > 1 or (is_1_1 and not hosts) or not _LENGTH.fullmatch(length):
        raise Malformed(400)
    return RequestHead(method, path, version, headers, None if chunked else int(length), last, expects_continue)


def check_unfinished(head: bytes | bytearray) -> None:
    """Raise Malformed for the beginning of a head that no further bytes can make valid."""
    if len(head) > limits.HEAD_BYTES:
        raise Malformed(431)
    if head[0] <= ord(" ") or head.count(b"\n") != head.count(b"\r\n"):
        raise Malformed(400)


def path_of(target: bytes) -> bytes | None:
    """Return path and query of a target, or None for an absolute address without a host, with a user or with a
    fragment.

    Proxies send absolute addresses, and a server must accept them. The host in them is ignored here.
    """
    if target.startswith(b"/") or not _WITH_SCHEME.match(target):
        return target
    parts = _ABSOLUTE.fullmatch(target)
    if parts is None or not _AUTHORITY.fullmatch(parts[1]):
        return None
    return (parts[2] or b"/") + (parts[3] or b"")


def _status_of(head: bytes) -> int:
    """Return the status for a rejected head."""
    line = _REQUEST_LINE.match(head)
    if line is None:
        return 400
    method, major, minor = line.groups()
    if major != b"1" or minor not in (b"0", b"1"):
        return 505
    return 400 if method in KNOWN_METHODS else 405
