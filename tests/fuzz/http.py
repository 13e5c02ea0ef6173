"""HTTP/1.1 as parsed by the coordinator, and multipart forms."""

import asyncio
import atexit
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import h11

from common.api import limits
from coordinatord.http.cors import Origins
from coordinatord.http.server.connection import ClientConnection, Timeouts
from coordinatord.http.server.exchange import ServerState
from coordinatord.http.server.heads import KNOWN_METHODS, path_and_query_of
from coordinatord.http.upload_forms import FileTooLarge, FormParser, UploadForm, read_form_boundary
from svc.serve.problems import Problem
from svc.serve.upload_form import read_form
from tests.fuzz.target import Target, cut, driven, own_folder, refused

_LOOP: Final = asyncio.new_event_loop()
atexit.register(_LOOP.close)
_TIMEOUT_S: Final = 5.0
Asked = tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]  # method, target, headers, body


class _Transport(asyncio.Transport):
    """Appends writes to `said`."""

    def __init__(self) -> None:
        super().__init__()
        self.said = bytearray()
        self.protocol: asyncio.Protocol | None = None
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += data

    def write_eof(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing and self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self._closing = True

    def abort(self) -> None:
        self.close()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


# Bare CR or LF, folded headers, control characters, versions, lists of lengths, and white space and extensions of
# chunks.
_STRICTER: Final = re.compile(
    rb"(?<!\r)\n|\r(?!\n)|\n[ \t]|[^\t\r\n -~]|HTTP/(?!1\.1)|content-length:[^\r]*[^0-9 \t\r]|[0-9a-f][ \t;][^\r]*\r\n",
    re.IGNORECASE,
)
_TURNS: Final = 4  # loop turns between two pieces


async def _spoken(pieces: list[bytes]) -> tuple[list[Asked], bytes]:
    """Return the requests that a connection reads from these pieces, and everything that it writes."""
    asked: list[Asked] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body, more = body + message["body"], message["more_body"]
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        asked.append((scope["method"].encode(), target, tuple(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    transport = _Transport()
    transport.protocol = client = ClientConnection(Timeouts(), lambda _: None)
    client.connection_made(transport)
    async with asyncio.timeout(_TIMEOUT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(client.run(ServerState(app, Origins())))
        for piece in pieces:
            client.get_buffer(-1)[: len(piece)] = piece
            client.buffer_updated(len(piece))
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        client.eof_received()
    return asked, bytes(transport.said)


def _by_h11(data: bytes) -> list[Asked]:
    """Return the requests that h11 accepts, up to its first error."""
    connection, found = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), []
    connection.receive_data(data)
    connection.receive_data(b"")
    head, body = None, bytearray()
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return found
        if isinstance(event, h11.Request):
            head, body = event, bytearray()
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            found.append((head.method, head.target, tuple(head.headers), bytes(body)))
            try:
                connection.send(h11.Response(status_code=404, headers=[(b"content-length", b"0")]))
                connection.send(h11.EndOfMessage())
                connection.start_next_cycle()
            except h11.ProtocolError:
                return found
        else:
            return found


def check_requests(data: bytes) -> None:
    """Compare with h11, however the bytes are split. The server reads nothing that h11 rejects, and everything that h11
    accepts unless the server's rules refuse it. Its output must be valid HTTP."""
    asked, said = _LOOP.run_until_complete(_spoken([data] if data else []))
    again, _ = _LOOP.run_until_complete(_spoken(cut(data)))
    assert asked == again, "the cuts decide what is heard"
    heard = _by_h11(data)
    for mine, theirs in zip(asked, heard, strict=False):
        assert (mine[0], mine[2], mine[3]) == (theirs[0], theirs[2], theirs[3])
        assert (path_and_query_of(theirs[1]) or b"").rstrip(b"?") == mine[1].rstrip(b"?")
        assert len(mine[2]) <= limits.MAX_HEADERS
    assert len(asked) <= len(heard)
    if len(asked) < len(heard) and not any(_is_last(each) for each in heard[: len(asked)]):
        assert _is_refused_by_our_rules(data, heard[len(asked)]), "a request is not heard that h11 hears"
    _check_said(said, [each[0] for each in asked])


def _is_last(asked: Asked) -> bool:
    return any(name == b"connection" and b"close" in value.lower() for name, value in asked[2])


def _is_refused_by_our_rules(data: bytes, asked: Asked) -> bool:
    """Return True when a rule of `coordinatord.http.server.heads`, or a rule of httptools that h11 does not share,
    explains why this request was not heard."""
    method, target, headers, _ = asked
    names = [name for name, _ in headers]
    framing = [name for name in (b"content-length", b"transfer-encoding") for _ in range(data.lower().count(name))]
    return (
        method not in KNOWN_METHODS
        or path_and_query_of(target) is None
        or not target.startswith((b"/", b"http://", b"https://"))
        or names.count(b"host") != 1
        or len(framing) > 1
        or _STRICTER.search(data) is not None
    )


def _check_said(said: bytes, methods: list[bytes]) -> None:
    """Check that the output is complete responses in order: one per request and at most one refusal."""
    rest, count = said, 0
    while rest:
        client = h11.Connection(h11.CLIENT)
        method = methods[count] if count < len(methods) else b"GET"
        if count >= len(methods) and rest.endswith(b"\r\n\r\n"):
            method = b"HEAD"  # of a request that was refused after its head was read
        client.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
        client.send(h11.EndOfMessage())
        client.receive_data(rest)
        event = client.next_event()
        while not isinstance(event, h11.EndOfMessage):
            if event is h11.NEED_DATA and client.their_state is h11.SEND_RESPONSE and rest.startswith(b"HTTP/1.1 100 "):
                assert count == len(methods), said  # the awaited body did not come
                return
            assert isinstance(event, h11.Response | h11.Data | h11.InformationalResponse), (event, said)
            event = client.next_event()
        rest = client.trailing_data[0]
        count += 1
    assert count <= len(methods) + 1, said


_BOUNDARY: Final = b"multipart/form-data; boundary=b"


async def _in(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _uploaded(pieces: list[bytes]) -> tuple[str, str, bytes, dict[str, str]]:
    form = UploadForm(b"b", _in(pieces), 1000)
    purpose, name = await form.read_purpose(), await form.read_filename()
    content = b"".join([piece async for piece in form.pieces()])
    return purpose, name, content, dict(form.expires_after)


def check_forms(data: bytes) -> None:
    """Check that an upload's form is parsed independent of splits, and that `svc serve` reads the same file."""
    boundary = refused(lambda: read_form_boundary(data[:80].decode("latin-1")))
    if boundary is not None:
        refused(lambda: FormParser(boundary))
    whole = refused(lambda: driven(_uploaded([data])), FileTooLarge)
    assert whole == refused(lambda: driven(_uploaded(cut(data))), FileTooLarge)
    local = _LOOP.run_until_complete(_locally(data))
    if whole is not None and local is not None:
        fields, filename, content = local
        assert content == whole[2]
        assert fields.get("purpose") == whole[0]
        assert filename is not None


class _LocalUpload:
    headers: Final = {"content-type": _BOUNDARY.decode()}

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def read_chunks(self) -> AsyncIterator[bytes]:
        return _in(self._pieces)


_PARTIAL: Final = own_folder()


async def _locally(data: bytes) -> tuple[dict[str, str], str | None, bytes] | None:
    partial = _PARTIAL / "upload"
    try:
        form = await read_form(_LocalUpload(cut(data)), partial)  # type: ignore[arg-type]
    except Problem as problem:
        assert problem.status in {400, 413}
        return None
    return form.fields, form.filename, partial.read_bytes()


def _nearly_well_formed() -> list[bytes]:
    """Return requests that differ from a valid one by a byte or a line."""
    lines = (
        *(b"X-Mixed: B", b"x-a: b\rc", b"x-a: b\nc", b"x-a: b\0c", b"x-a: b\x7fc", b"x-a: b\x01c", b"x-a: b\xffc"),
        *(b"x-a : b", b" x-a: b", b"x-a", b": b", b"x-a:", b"x-a:\tb\x0b", b"x-a: b\r\n c", b"host: a", b"upgrade: a"),
        *(b"content-length: 2\r\ncontent-length: 2", b"content-length: 2\r\ncontent-length: 3", b"content-length: +2"),
        *(b"content-length: 2, 2", b"content-length: 0000000000000002", b"content-length:", b"expect: 100-continue"),
        *(b"connection: keep-alive, CLOSE", b"connection: closed", b"connection: upgrade", b"transfer-encoding: "),
    )
    first = (b"GET  /", b"get /", b"GET /\x80", b"GET *", b"GET a", b"GET /a b", b"GET /\t", b"GET //", b"GET /?#")
    return [
        *(b"POST / HTTP/1.1\r\nhost: a\r\n%s\r\n\r\n{}GET /b HTTP/1.1\r\nhost: a\r\n\r\n" % line for line in lines),
        *(b"%s HTTP/1.1\r\nhost: a\r\n\r\n" % line for line in first),
        *(
            b"GET / %s\r\nhost: a\r\n\r\n" % version
            for version in (b"HTTP/1.0", b"http/1.1", b"HTTP/1.2", b"HTTP/1.1 ")
        ),
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx-a: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\n\n",
        b"GET / HTTP/1.1\nhost: a\r\n\r\n",
        b"PUT /a%20b?c HTTP/1.1\r\nHost: a\r\nConnection: Keep-Alive\r\ncontent-length:3\r\n\r\nabcHEAD /x HTTP/1.1\r\n"
        b"host: \ta \r\nx-a:\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    ]


def _requests() -> list[bytes]:
    after = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    chunked = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    return [
        *_nearly_well_formed(),
        *(chunked + size + b"\r\n{}\r\n0\r\n\r\n" + after for size in (b"2", b"2;a=b", b"2 ", b"+2")),
        *(b"%s / HTTP/1.1\r\nhost: a\r\n\r\n" % method for method in (b"PROPFIND", b"SOURCE", b"FOO", b"PRI")),
        *(b"OPTIONS * %s\r\nhost: a\r\n\r\n" % version for version in (b"HTTP/2.0", b"RTSP/1.0", b"ICE/1.0")),
        b"GET /v1/jobs?limit=1 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}GET / HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n",
        b"GET http://a:80/x?y HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\na",
        b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: a\r\n\r\n",
        b"HEAD // HTTP/1.1\nhost: a\n\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"HEAd / HTTP/1.0\r\n\r\n",
        b"GET //[ HTTP/1.1\r\nhost: a\r\norigin: https://b\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\nOPTIONS * HTTP/1.1\r\nhost: a\r\n folded\r\n\r\n",
    ]  # fmt: skip


_HTTP_WORDS: Final = (
    *(b"\r\n", b"\r\n\r\n", b"HTTP/1.1", b"HTTP/1.0", b"transfer-encoding: chunked", b"content-length: ", b"host: a"),
    *(
        b"expect: 100-continue",
        b"connection: close",
        b"upgrade: websocket",
        b"http://",
        b"GET ",
        b"HEAD ",
        b"[::1]",
        b"%2f",
    ),
)


def _forms() -> list[bytes]:
    part = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    whole = part % (b"purpose", b"", b"batch") + part % (b"file", b'; filename="a.jsonl"', b"{}\n")
    late = part % (b"expires_after[anchor]", b"", b"created_at") + part % (b"expires_after[seconds]", b"", b"3600")
    star = part % (b"purpose", b"; filename*=utf-8''%41", b"x")
    return [whole + b"--b--\r\n", whole + late + b"--b--", late + whole, star, b"--b--\r\n", _BOUNDARY]


_FORM_WORDS: Final = (
    *(b"--b\r\n", b"--b--\r\n", b"\r\n", b"Content-Disposition: form-data; name=", b'"file"', b'"purpose"'),
    *(b'; filename="a"', b"filename*=", b"expires_after[anchor]", b"multipart/form-data; boundary=", b"%00", b"\\"),
)

TARGETS: Final = (
    Target("requests", check_requests, _requests, _HTTP_WORDS, longest=1024),
    Target("forms", check_forms, _forms, _FORM_WORDS, longest=1500),
)
