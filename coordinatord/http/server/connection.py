"""Pass bytes between one client's socket and the client's requests, and disconnect slow clients.

    socket ──► get_buffer, buffer_updated ──► unread bytes ──► head ──► Exchange ──► application
       ◄────────────────────────── write ◄──────────────────────────────────┘

Requests of a connection are read and answered one after another, in the connection's own task. Pipelined requests wait
among the unread bytes, and reading from the socket pauses above MAX_UNREAD_BYTES.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import anyio
import attrs
import structlog

from common.api.limits import KIB
from coordinatord.http.bodies import ClientDisconnected
from coordinatord.http.server.exchange import MAX_PIECE_BYTES, Exchange, ServerState, SocketAddress, build_asgi_scope
from coordinatord.http.server.heads import HEAD_END, HeadParser, MalformedRequest, check_partial_head

log = structlog.get_logger(__name__)

READ_BUFFER_BYTES: Final = 16 * KIB
MAX_UNREAD_BYTES: Final = 64 * KIB
_SMALL_PIECE_BYTES: Final = 4 * KIB
_MAX_UNWRITTEN_PIECES: Final = 16
# Time for a client to close its side after the server closed its side.
_LINGER_S: Final = 2.0

# All connections share this buffer, because the event loop fills the buffer and calls `buffer_updated` in one step.
_read_buffer: Final = memoryview(bytearray(READ_BUFFER_BYTES))


@attrs.frozen(slots=True)
class Timeouts:
    """Time limits for a client. `idle_s` limits the wait for the next request head. `grace_s` and `min_bytes_per_s`
    limit the time for reading the response, because a slow client keeps the response in memory and delays a shutdown.
    """

    idle_s: float = 30.0
    grace_s: float = 10.0
    min_bytes_per_s: int = 32 * 1024

    def seconds_to_read(self, unsent_bytes: int) -> float:
        return self.grace_s + unsent_bytes / self.min_bytes_per_s


class ClientConnection(asyncio.BufferedProtocol):
    """Connection of one client. A new connection is passed to `on_open`, and `run` serves its requests. `idle_since` is
    the loop time at which the connection became idle, or None during a request."""

    def __init__(self, timeouts: Timeouts, on_open: "Callable[[ClientConnection], None]") -> None:
        self.address = "unknown"
        self.idle_since: float | None = None
        self._timeouts = timeouts
        self._on_open = on_open
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._unread = bytearray()
        # Pieces that are written together in the next iteration of the event loop.
        self._unwritten: list[bytes] = []
        self._reading_paused = False
        self._writing_paused = False
        # True when the client has closed its side.
        self._input_closed = False
        self._lost = asyncio.Event()
        # Future of the task that waits for bytes or the end of input.
        self._input_waiter: asyncio.Future[None] | None = None
        # Future of the task that waits for space in the write buffer.
        self._write_waiter: asyncio.Future[None] | None = None
        # True after the last response, when no further request is served.
        self._ending = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's class does not derive from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        if peer := transport.get_extra_info("peername"):
            self.address = peer[0]
        self.idle_since = self._loop.time()
        self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ending:
            # Drop bytes that arrive after the last response.
            return
        self._unread += _read_buffer[:nbytes]
        if len(self._unread) >= MAX_UNREAD_BYTES:
            self._reading_paused = True
            self._transport.pause_reading()
        _wake(self._input_waiter)

    def eof_received(self) -> bool:
        self._input_closed = True
        _wake(self._input_waiter)
        # Keep the transport open, because the client may still read its response.
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self._input_closed = True
        self._writing_paused = False
        self._lost.set()
        _wake(self._input_waiter)
        _wake(self._write_waiter)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        _wake(self._write_waiter)

    async def run(self, server_state: ServerState) -> None:
        try:
            self._start_idle_timer()
            await self._serve(server_state)
        except (OSError, ClientDisconnected):
            pass
        except Exception:
            log.exception("connection failed")
        finally:
            await self._disconnect()

    def close_if_idle(self) -> None:
        """Close the connection if it is idle. A connection with a request closes after the response."""
        if self.idle_since is not None:
            self._close()

    def close_to_make_room(self) -> None:
        """Close this idle connection to make room for a new connection."""
        self._ending = True
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def input_has_ended(self) -> bool:
        return self._input_closed and not self._unread

    @property
    def unread_bytes(self) -> int:
        return len(self._unread)

    async def read(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes` bytes, or b"" at the end of input."""
        while not self._unread and not self._input_closed:
            await self._wait_for_input()
        data = bytes(self._unread[:max_bytes])
        del self._unread[:max_bytes]
        if len(self._unread) < MAX_UNREAD_BYTES // 2:
            self._resume_reading()
        return data

    def put_back(self, data: bytes) -> None:
        self._unread[:0] = data

    async def wait_until_ended(self) -> None:
        """Wait until the client closes its side. Bytes that arrive in the meantime stay unread."""
        while not self._input_closed:
            await self._wait_for_input()

    async def write(self, data: bytes, *, more: bool = False) -> None:
        """Write bytes. Raise ClientDisconnected when the client is gone or reads too slowly.

        Small pieces that are written with `more` are sent together in the event loop's next iteration, to save system
        calls.
        """
        if self._transport.is_closing():
            raise ClientDisconnected
        self._unwritten.append(data)
        if (
            more
            and not self._writing_paused
            and len(data) < _SMALL_PIECE_BYTES
            and len(self._unwritten) < _MAX_UNWRITTEN_PIECES
        ):
            if len(self._unwritten) == 1:
                self._loop.call_soon(self._flush)
            return
        self._flush()
        unsent = self._unsent_bytes()
        if unsent <= MAX_PIECE_BYTES:
            return
        with anyio.move_on_after(self._timeouts.seconds_to_read(unsent)) as waiting:
            while self._writing_paused:
                self._write_waiter = self._loop.create_future()
                await self._write_waiter
        if waiting.cancelled_caught:
            log.debug("reader too slow", unsent=self._unsent_bytes())
            self._transport.abort()
        if waiting.cancelled_caught or self._lost.is_set():
            raise ClientDisconnected

    def _flush(self) -> None:
        if self._unwritten and not self._transport.is_closing():
            self._transport.write(b"".join(self._unwritten))
        self._unwritten.clear()

    def _resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            if not self._input_closed:
                self._transport.resume_reading()

    async def _wait_for_input(self) -> None:
        self._input_waiter = self._loop.create_future()
        try:
            await self._input_waiter
        finally:
            self._input_waiter = None

    async def _serve(self, server_state: ServerState) -> None:
        """Serve one request after another, then keep reading for a while.

        Closing a socket with unread bytes resets the connection. A client that is still sending a rejected body would
        then not see the response.
        """
        client, server = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        await self._serve_requests(server_state, HeadParser(), client, server)
        self._end_after_response()
        await self.wait_until_ended()

    async def _serve_requests(
        self, server_state: ServerState, parser: HeadParser, client: SocketAddress, server: SocketAddress
    ) -> None:
        while head := await self._read_head(server_state):
            try:
                request = parser.parse(head)
            except MalformedRequest as fault:
                await self.write(server_state.encode_refusal(fault, head))
                return
            self.idle_since = None
            if not await Exchange(self, request, head, server_state).run(build_asgi_scope(request, client, server)):
                return
            if server_state.is_stopping:
                return
            self._start_idle_timer()
            if self._unread:
                # Pipelined requests take turns with other connections.
                await asyncio.sleep(0)

    async def _read_head(self, server_state: ServerState) -> bytes | None:
        """Return the next head including its empty line, or None when no head arrives or the head was rejected."""
        while not self._ending:
            end = self._unread.find(HEAD_END)
            if end >= 0:
                return await self.read(end + len(HEAD_END))
            if self._unread:
                try:
                    check_partial_head(self._unread)
                except MalformedRequest as fault:
                    await self.write(server_state.encode_refusal(fault, bytes(self._unread)))
                    return None
            if self._input_closed:
                return None
            await self._wait_for_input()
        return None

    def _unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def _start_idle_timer(self) -> None:
        """Start waiting for the next head, up to `idle_s`. All requests of the connection use the same timer,
        because starting a timer costs more than reading a request."""
        self.idle_since = self._loop.time()
        if self._deadline is None:
            self._deadline = self._loop.call_later(self._timeouts.idle_s, self._end_when_idle)

    def _end_when_idle(self) -> None:
        self._deadline = None
        if self.idle_since is None:
            return
        left = self.idle_since + self._timeouts.idle_s - self._loop.time()
        if left > 0:
            self._deadline = self._loop.call_later(left, self._end_when_idle)
        else:
            self._close()

    def _end_after_response(self) -> None:
        if self._ending or self._transport.is_closing():
            return
        self._ending = True
        self._unread.clear()
        self._resume_reading()
        self._flush()
        self._transport.write_eof()
        self._abort_after(_LINGER_S + self._unsent_bytes() / self._timeouts.min_bytes_per_s)

    def _close(self) -> None:
        self._ending = True
        self._flush()
        # The transport closes after its buffer is sent.
        self._transport.close()
        self._abort_after(self._timeouts.seconds_to_read(self._unsent_bytes()))

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._transport.abort)

    async def _disconnect(self) -> None:
        """Close the socket, and wait until the buffer is sent."""
        self._close()
        try:
            await self._lost.wait()
        finally:
            self._transport.abort()
            if self._deadline is not None:
                self._deadline.cancel()


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
