"""The provider's own server for the owners of open tabs. It has the same two routes as the coordinator, over TLS.

    POST /v1/tabs/messages               frames of the token's tab
    GET  /v1/tabs/{job_id}/messages      frames for the owner of the token's tab, as server-sent events

The server reads a body or begins a stream only for a request with the token of an open tab. Clients without a token
share a few connections, each for a few seconds. hypercorn, which serves /metrics, cannot limit connections, so this
module drives h11 itself.
"""

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import attrs
import h11
import structlog
import trio

from common.api.tabs import MAX_TAB_FRAME_BYTES, MAX_TAB_FRAMES_PER_POST, MAX_TAB_POST_BYTES
from common.canonical_json import canonical
from common.daemon.process import Fatal
from common.json_object import ObjectReader
from common.refusal import Refused
from common.scalars import base64_of, hex_of, read_base64
from common.strict_json import parse
from svcd.config import TabsTable
from svcd.tabs.certificate import PublishedEndpoint, read_endpoint, server_context
from svcd.tabs.open_tabs import OpenTab, OpenTabs

log = structlog.get_logger(__name__)

MESSAGES_PATH: Final = "/v1/tabs/messages"
MAX_UNAUTHENTICATED_CONNECTIONS: Final = 32  # connections on which no valid token has arrived
MAX_CONNECTIONS_PER_TAB: Final = 8
UNAUTHENTICATED_TIMEOUT_S: Final = 5.0  # for the TLS handshake, and again for the head of the first request
_UNAUTHENTICATED_PAUSE_S: Final = 1.0  # a closed connection counts this much longer, to limit handshakes
_IDLE_TIMEOUT_S: Final = 90.0
_BODY_TIMEOUT_S: Final = 30.0
_SEND_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 1.0
_HEARTBEAT_INTERVAL_S: Final = 10.0
_ACCEPT_PAUSE_S: Final = 0.1
_MAX_HEAD_BYTES: Final = 8192
_RECEIVE_CHUNK_BYTES: Final = 65_536
_POST_READER: Final = ObjectReader("a post of frames", "malformed_post")
_CONNECTION_ERRORS: Final = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
    h11.ProtocolError,
)


@attrs.frozen(slots=True)
class _Answer:
    status: int
    body: dict[str, object]


class _Disconnected(Exception):
    """The other side closed the connection."""


@attrs.define(slots=True, eq=False)
class DirectServer:
    """Server on a bound socket. `published_endpoint` is sent to owners in the `welcome` message."""

    listening_socket: socket.socket
    tls_context: ssl.SSLContext
    published_endpoint: PublishedEndpoint
    _unauthenticated_count: int = 0
    _connections_by_tab: dict[bytes, int] = attrs.field(factory=dict)

    async def serve(self, tabs: OpenTabs) -> NoReturn:
        """Serve until cancelled. A failed connection does not end the server."""
        with trio.socket.from_stdlib_socket(self.listening_socket.dup()) as accepting:
            listener = trio.SocketListener(accepting)
            async with trio.open_nursery() as nursery:
                while True:
                    try:
                        stream = await listener.accept()
                    except OSError as error:  # no file descriptor is free
                        log.warning("connection not accepted", reason=error.strerror)
                        await trio.sleep(_ACCEPT_PAUSE_S)
                        continue
                    if self._unauthenticated_count < MAX_UNAUTHENTICATED_CONNECTIONS:
                        self._unauthenticated_count += 1
                        nursery.start_soon(self._serve_connection, stream, tabs)
                    else:
                        await stream.aclose()
        raise AssertionError("the loop above does not end")

    async def _serve_connection(self, stream: trio.SocketStream, tabs: OpenTabs) -> None:
        secured = trio.SSLStream(stream, self.tls_context, server_side=True, https_compatible=True)
        connection = _Connection(self, secured, tabs)
        try:
            with trio.fail_after(UNAUTHENTICATED_TIMEOUT_S):
                await secured.do_handshake()
            await connection.serve()
        except (*_CONNECTION_ERRORS, _Disconnected):
            pass
        except Exception:
            log.exception("direct connection failed unexpectedly")
        finally:
            try:
                with trio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                    await stream.aclose()
                if not connection.has_token:
                    await trio.sleep(_UNAUTHENTICATED_PAUSE_S)
            finally:
                connection.unregister()

    def admit(self, tab: OpenTab) -> bool:
        """Count an unauthenticated connection as a connection of this tab. Return False if the tab has too many."""
        if self._connections_by_tab.get(tab.job_id, 0) >= MAX_CONNECTIONS_PER_TAB:
            return False
        self._connections_by_tab[tab.job_id] = self._connections_by_tab.get(tab.job_id, 0) + 1
        self._unauthenticated_count -= 1
        return True

    def remove_connection(self, job_id: bytes | None) -> None:
        """Stop counting a closed connection of the tab `job_id`. None means an unauthenticated connection."""
        if job_id is None:
            self._unauthenticated_count -= 1
            return
        self._connections_by_tab[job_id] -= 1
        if not self._connections_by_tab[job_id]:
            del self._connections_by_tab[job_id]


class _Connection:
    """Client's connection. The connection is unauthenticated until a request has the token of an open tab."""

    def __init__(self, server: DirectServer, stream: trio.SSLStream[trio.SocketStream], tabs: OpenTabs) -> None:
        self._server = server
        self._stream = stream
        self._tabs = tabs
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._job_id: bytes | None = None

    @property
    def has_token(self) -> bool:
        return self._job_id is not None

    def unregister(self) -> None:
        self._server.remove_connection(self._job_id)

    async def serve(self) -> None:
        while True:
            with trio.fail_after(UNAUTHENTICATED_TIMEOUT_S if self._job_id is None else _IDLE_TIMEOUT_S):
                request = await self._next_event()
            if not isinstance(request, h11.Request):
                return
            tab = self._find_tab(request)
            if tab is None:
                await self._send_answer(
                    _error_answer(401, "authentication_error", "the token does not belong to an open tab")
                )
                return
            path = request.target.decode("ascii", "replace")
            if request.method == b"GET" and path == f"/v1/tabs/{hex_of(tab.job_id)}/messages":
                await self._stream_frames(tab)
                return
            if request.method != b"POST" or path != MESSAGES_PATH:
                await self._send_answer(
                    _error_answer(
                        404, "not_found", f"use POST {MESSAGES_PATH} or GET /v1/tabs/{hex_of(tab.job_id)}/messages"
                    )
                )
                return
            with trio.fail_after(_BODY_TIMEOUT_S):
                answer = await self._receive_post(tab, dict(request.headers).get(b"content-length", b"0"))
            await self._send_answer(answer)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    def _find_tab(self, request: h11.Request) -> OpenTab | None:
        """Return the tab of the request's token, and count the connection as a connection of this tab."""
        given = dict(request.headers).get(b"authorization", b"")  # h11 writes names in lower case
        tab = self._tabs.find_by_token(given.decode("latin-1").removeprefix("Bearer "))
        if tab is None:
            return None
        if self._job_id is None and self._server.admit(tab):
            self._job_id = tab.job_id
        return tab if self._job_id == tab.job_id else None

    async def _receive_post(self, tab: OpenTab, length: bytes) -> _Answer:
        """Read the body of a post, and pass its frames to the tab."""
        body = bytearray()
        if int(length) > MAX_TAB_POST_BYTES:  # h11 rejects a length that is not a number
            return _TOO_LARGE_ANSWER
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > MAX_TAB_POST_BYTES:
                return _TOO_LARGE_ANSWER
        try:
            frames = _read_post(bytes(body))
        except Refused as refusal:
            return _error_answer(400, "invalid_request_error", refusal.message)
        refused = {job_id for job_id, _ in frames if job_id != tab.job_id}
        for job_id, frame in frames:
            if job_id == tab.job_id:
                await tab.deliver("direct", frame)
        return _Answer(
            200, {"refused": [{"job_id": hex_of(job_id), "code": "not_party"} for job_id in sorted(refused)]}
        )

    async def _stream_frames(self, tab: OpenTab) -> None:
        await self._send(
            h11.Response(
                status_code=200, headers=[("content-type", "text/event-stream"), ("cache-control", "no-store")]
            )
        )
        stream = tab.outbox.register_stream()
        while True:
            frames: list[bytes] | None = []
            with trio.move_on_after(_HEARTBEAT_INTERVAL_S):
                frames = await tab.outbox.receive(stream)
            if frames is None:
                break
            events = "".join(f"event: frame\ndata: {base64_of(frame)}\n\n" for frame in frames)
            await self._send(h11.Data(data=(events or ":\n\n").encode()))
        if tab.outbox.is_closed:
            await self._send(h11.Data(data=b"event: end\ndata: {}\n\n"))
        await self._send(h11.EndOfMessage())

    async def _send_answer(self, answer: _Answer) -> None:
        body = canonical(answer.body)
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        if answer.status != 200:
            headers.append(("connection", "close"))
        await self._send(h11.Response(status_code=answer.status, headers=headers))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._http.send(event)
        if data:
            with trio.fail_after(_SEND_TIMEOUT_S):
                await self._stream.send_all(data)

    async def _next_event(self) -> h11.Event:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    await self._stream.send_all(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
                self._http.receive_data(bytes(await self._stream.receive_some(_RECEIVE_CHUNK_BYTES)))
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise _Disconnected
            else:
                return event  # type: ignore[return-value]


@contextmanager
def open_server(settings: TabsTable | None) -> Iterator[DirectServer | None]:
    """Bind the port of the direct endpoint, and read the certificate. Raise `Fatal` if either fails."""
    if settings is None:
        yield None
        return
    published, context = read_endpoint(settings), server_context(settings)
    host, port = settings.listen
    try:
        bound = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=MAX_UNAUTHENTICATED_CONNECTIONS,
        )
    except OSError as error:
        raise Fatal(
            f"tabs.listen: {host}:{port}: {os.strerror(error.errno or 0)}; choose another address or port"
        ) from None
    with bound:
        bound.setblocking(False)
        log.info("direct endpoint opened", host=host, port=bound.getsockname()[1], url=published.url)
        yield DirectServer(bound, context, published)


def _read_post(body: bytes) -> list[tuple[bytes, bytes]]:
    messages = _POST_READER.read_list(
        _POST_READER.read_fields(parse(body), None, {"messages"})["messages"], "messages", 1, MAX_TAB_FRAMES_PER_POST
    )
    frames = []
    for n, message in enumerate(messages):
        fields = _POST_READER.read_fields(message, f"messages[{n}]", {"job_id", "body"})
        job_id = _POST_READER.read_hex(fields["job_id"], 32, f"messages[{n}].job_id")
        frames.append((job_id, read_base64(fields["body"], MAX_TAB_FRAME_BYTES, f"messages[{n}].body")))
    return frames


def _error_answer(status: int, kind: str, message: str) -> _Answer:
    return _Answer(status, {"error": {"type": kind, "code": None, "param": None, "message": message}})


_TOO_LARGE_ANSWER: Final = _error_answer(
    413, "invalid_request_error", f"a post may have at most {MAX_TAB_POST_BYTES} bytes"
)
