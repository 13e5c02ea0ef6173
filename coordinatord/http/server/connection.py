"""One client's connection: bytes between its socket and the protocol, and an end to whoever takes too long.

                 plain requests
socket ──► read ──► PlainExchange ──► app          each in the task of the connection
   ▲         └────► Http11 ──► inbox ──► handler   any other, to its end
   └── write ◄────────┴──────────┘
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import anyio
import attrs
import structlog
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import AppWrapper
from starlette.types import ASGIApp

from coordinatord.http.bodies import CallerGone
from coordinatord.http.middleware import Origins
from coordinatord.http.server.http11 import Handlers, Http11
from coordinatord.http.server.plain import OwnHeaders, PlainExchange, PlainRequest, plain_request, scope_of

log = structlog.get_logger(__name__)


@attrs.frozen(slots=True)
class Timeouts:
    """Times that a client may take. `idle`: until the head of its next request is here. `grace` and `least_rate`: how
    soon what was written to it must have left; a client that reads slower would hold the answer in our memory, and a
    shutdown up."""

    idle: float = 30.0
    grace: float = 10.0
    least_rate: int = 32 * 1024  # bytes per second

    def patience(self, unsent: int) -> float:
        """Seconds for so many bytes."""
        return self.grace + unsent / self.least_rate


PIECE_BYTES: Final = 1 << 16
_HELD_BYTES: Final = 2 * PIECE_BYTES  # of what came and was not read; the rest waits in the socket
_LITTLE: Final = 1 << 12  # bytes of a piece that waits for those that are made in the same turn of the loop
_MOST_GATHERED: Final = 16
_LINGER: Final = 2.0  # seconds for a client to close its side after we closed ours


class Service:
    """Application that all connections serve, with hypercorn's configuration, and what is made of both once."""

    def __init__(self, app: ASGIApp, config: Config, origins: Origins) -> None:
        """`origins` may read what is answered before `app` hears of a request."""
        self.app = app
        self.wrapped = cast(AppWrapper, ASGIWrapper(app))  # type: ignore[arg-type] # its own types of the same shapes
        self.config = config
        self.context = WorkerContext(None)
        self.origins = origins
        self.own_headers = OwnHeaders(config)
        self.stopping: Callable[[], bool] = self.context.terminated.is_set


class ClientConnection(asyncio.Protocol):
    """`run` it to its end once `made` has been told of it. `finish` when no further request is wanted, `give_way` when
    another needs its place, `abort` to end it now. `address`: the client's; `idle_since`: when it had a request last,
    None while it has one."""

    def __init__(self, timeouts: Timeouts, made: "Callable[[ClientConnection], None]") -> None:
        self.address = "unknown"
        self.idle_since: float | None = None
        self._timeouts = timeouts
        self._made = made
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._unread: list[bytes] = []
        self._unread_size = 0
        self._gathered: list[bytes] = []  # to be written with the next turn of the loop
        self._reading_paused = False
        self._writing_paused = False
        self._ended = False  # the client's side
        self._lost = asyncio.Event()
        self._changed: asyncio.Future[None] | None = None  # somebody waits for bytes, or for their end
        self._sent: asyncio.Future[None] | None = None  # somebody waits for room to write
        self._ending = False
        self._deadline: asyncio.TimerHandle | None = None

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is no subclass of it
        if peer := transport.get_extra_info("peername"):
            self.address = peer[0]
        self.idle_since = self._loop.time()
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_size += len(data)
        if self._unread_size > _HELD_BYTES and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        _wake(self._changed)

    def eof_received(self) -> bool:
        self._ended = True
        _wake(self._changed)
        return True  # it may still want its answer

    def connection_lost(self, _: Exception | None) -> None:
        self._ended = True
        self._writing_paused = False
        self._lost.set()
        _wake(self._changed)
        _wake(self._sent)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        _wake(self._sent)

    # What the server asks for.

    async def run(self, service: Service) -> None:
        try:
            self._rest()
            await self._serve(service)
        except* (OSError, CallerGone):
            pass  # the network's business
        except* Exception:
            log.exception("connection failed")  # and no other with it
        finally:
            await self._part()

    def finish(self) -> None:
        """A request in flight still gets its answer; the protocol closes after it."""
        if self.idle_since is not None:
            self._end_idle()

    def give_way(self) -> None:
        """It has no request. What it was answered and has not read goes with it."""
        self._ending = True
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

    # What its requests read and write.

    @property
    def ended(self) -> bool:
        return self._ended and not self._unread

    async def read(self) -> bytes:
        """All that has come; b"" when nothing more will."""
        while not self._unread:
            if self._ended:
                return b""
            self._changed = self._loop.create_future()
            try:
                await self._changed
            finally:
                self._changed = None
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_size = 0
        if self._reading_paused:
            self._reading_paused = False
            if not self._ended:
                self._transport.resume_reading()
        return data

    async def write(self, data: bytes, more: bool = False) -> None:
        """Raises CallerGone when nobody reads, or not fast enough. Small pieces of an answer that has `more` leave
        together when the loop comes round, since each would cost a call of the system."""
        if self._transport.is_closing():
            raise CallerGone
        if more and not self._writing_paused and len(data) < _LITTLE and len(self._gathered) < _MOST_GATHERED:
            if not self._gathered:
                self._loop.call_soon(self._flush)
            self._gathered.append(data)
            return
        self._gathered.append(data)
        self._flush()
        unsent = self._unsent()
        if unsent <= PIECE_BYTES:
            return
        with anyio.move_on_after(self._timeouts.patience(unsent)) as waiting:
            while self._writing_paused:
                self._sent = self._loop.create_future()
                await self._sent
        if waiting.cancelled_caught:
            log.debug("reader too slow", unsent=self._unsent())
            self._transport.abort()
        if waiting.cancelled_caught or self._lost.is_set():
            raise CallerGone

    def _flush(self) -> None:
        if self._gathered and not self._transport.is_closing():
            self._transport.write(b"".join(self._gathered))
        self._gathered.clear()

    async def _serve(self, service: Service) -> None:
        """Requests, one after another, until the client has closed its side. After our end a connection is read on for
        a while: closing a socket with bytes unread resets it, and a client that is still sending what we refused would
        never see the refusal."""
        peers = (self._transport.get_extra_info("peername"), self._transport.get_extra_info("sockname"))
        data = b""
        while data := data or await self.read():
            if self._ending:
                data = b""
            elif (request := plain_request(data)) is not None:
                data = await self._answer(service, request, data, peers)
            else:
                data = await self._leave_to_h11(service, data, peers)

    async def _answer(self, service: Service, request: PlainRequest, data: bytes, peers: "Peers") -> bytes:
        """What comes after the request."""
        self.idle_since = None
        exchange = PlainExchange(self, request, data[request.head :], service.own_headers, service.stopping)
        if not await exchange.run(service.app, scope_of(request, *peers)):
            self._end_after_answer()
            return b""
        self._rest()
        if exchange.rest:
            await asyncio.sleep(0)  # those who send many at once take turns with everybody else
        return exchange.rest

    async def _leave_to_h11(self, service: Service, data: bytes, peers: "Peers") -> bytes:
        """Until it rests between two messages; what comes after them."""
        async with Handlers() as handlers:
            protocol = Http11(
                service.wrapped,
                service.config,
                service.context,
                handlers=handlers,
                peers=peers,
                origins=service.origins,
                send=self._send,
            )
            while data:
                if not self._ending:
                    await protocol.handle(RawData(data))
                data = await self.read()
                if not self._ending and protocol.rests:
                    return data
            await protocol.handle(Closed())
        return b""

    async def _send(self, event: Event) -> None:
        match event:
            case RawData():
                await self.write(event.data)
            case Updated() if event.idle:
                self._rest()
            case Updated():
                self.idle_since = None
            case Closed():
                self._end_after_answer()

    # Its ends.

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def _rest(self) -> None:
        """The head of the next request must be here in time. A timer for each request would cost more than reading it:
        one is under way, and looks again at what has come since."""
        self.idle_since = self._loop.time()
        if self._deadline is None:
            self._deadline = self._loop.call_later(self._timeouts.idle, self._look)

    def _look(self) -> None:
        self._deadline = None
        if self.idle_since is None:
            return  # it has a request, after which it rests
        left = self.idle_since + self._timeouts.idle - self._loop.time()
        if left > 0:
            self._deadline = self._loop.call_later(left, self._look)
        else:
            self._end_idle()

    def _end_after_answer(self) -> None:
        if self._ending or self._transport.is_closing():
            return
        self._ending = True
        self._flush()
        self._transport.write_eof()
        self._abort_after(_LINGER + self._unsent() / self._timeouts.least_rate)

    def _end_idle(self) -> None:
        self._ending = True
        self._flush()
        self._transport.close()  # after what is written
        self._abort_after(self._timeouts.patience(self._unsent()))

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self._transport.abort)

    async def _part(self) -> None:
        """Until the socket is closed, and everything sent that will be."""
        self._flush()
        self._transport.close()
        self._abort_after(self._timeouts.patience(self._unsent()))
        try:
            await self._lost.wait()
        finally:
            self._transport.abort()
            if self._deadline is not None:
                self._deadline.cancel()


Address = tuple[str, int] | None
Peers = tuple[Address, Address]


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
