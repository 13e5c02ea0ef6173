"""One client's connection: bytes between its socket and the protocol, and an end to whoever takes too long.

socket ──► reader ──► Http11 ──► inbox ──► handler
   ▲                                          │
   └────────── writer ◄──── Http11 ◄──────────┘
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final

import anyio
import attrs
import structlog
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

from coordinatord.http.bodies import CallerGone
from coordinatord.http.middleware import Origins
from coordinatord.server.http11 import Http11

_LEAST: Final = 1 << 12  # bytes that a piece counts for
_ENOUGH: Final = 1 << 18  # bytes; what comes after them waits in the socket


class Inbox:
    """Messages that a request's handler has still to receive: the pieces of its body, and that its caller is gone.

    A queue with one reader. It holds nobody up once the handler has ended, or to say that the caller is gone: with a
    bounded queue, a handler that answers without reading its body would leave the connection waiting for ever.
    """

    def __init__(self) -> None:
        self._messages: deque[ASGIReceiveEvent] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._ended = False

    async def put(self, message: ASGIReceiveEvent) -> None:
        while self._size >= _ENOUGH and not self._ended and message["type"] == "http.request":
            await self._change()
        if not self._ended:
            self._messages.append(message)
            self._size += _size_of(message)
            self._changed.set()

    async def get(self) -> ASGIReceiveEvent:
        while not self._messages:
            await self._change()
        message = self._messages.popleft()
        self._size -= _size_of(message)
        self._changed.set()
        return message

    def end(self) -> None:
        """Nobody will read any more."""
        self._ended = True
        self._messages.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def _size_of(message: ASGIReceiveEvent) -> int:
    """Share of `_ENOUGH` that a message takes: a body that comes in chunks of one byte weighs far more than its
    bytes."""
    return max(len(message["body"]), _LEAST) if message["type"] == "http.request" else 0


log = structlog.get_logger(__name__)

Send = Callable[[ASGISendEvent | None], Awaitable[None]]


class Handlers:
    """Handlers of one connection's requests: hypercorn's task group. Left when every handler has ended."""

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> "Handlers":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: TracebackType | None) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    async def spawn_app(
        self, app: AppWrapper, _: Config, scope: Scope, send: Send
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start a handler. What it is to receive goes to the function that this returns."""
        inbox = Inbox()
        self._tasks.create_task(_handle(app, scope, inbox, send))
        return inbox.put

    def spawn(self, func: Callable[..., Any], *args: Any) -> None:
        self._tasks.create_task(func(*args))


async def _handle(app: AppWrapper, scope: Scope, inbox: Inbox, send: Send) -> None:
    try:
        await app(scope, inbox.get, send, _not_offered, _not_offered)
    except CallerGone:
        pass  # it left while the answer was on its way
    except Exception:
        log.exception("handler failed")  # half an answer is out: the connection ends in the midst of it
    finally:
        inbox.end()
        await send(None)


def _not_offered(*_: object) -> None:
    raise TypeError("WSGI applications are not served")


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
_MOST_AT_ONCE: Final = 1 << 18  # of what came; a large body costs by the piece
_LINGER: Final = 2.0  # seconds for a client to close its side after we closed ours


class ClientConnection:
    """`run` it to its end. `finish` when no further request is wanted, `give_way` when another needs its place, `abort`
    to end it now. `address`: the client's; `idle_since`: when it had a request last, None while it has one."""

    def __init__(self, timeouts: Timeouts, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self.address: str = peer[0] if peer else "unknown"
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self._timeouts = timeouts
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._ending = False
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self, app: AppWrapper, config: Config, context: WorkerContext, origins: Origins) -> None:
        try:
            self._end_after(self._timeouts.idle)
            begun = await self._reader.read(_MOST_AT_ONCE)  # nothing is made for a connection that says nothing
            if begun and not self._ending:
                async with Handlers() as handlers:
                    peers = (self._writer.get_extra_info("peername"), self._writer.get_extra_info("sockname"))
                    protocol = Http11(
                        app, config, context, handlers=handlers, peers=peers, origins=origins, send=self._send
                    )
                    await protocol.handle(RawData(begun))
                    await self._read(protocol)
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

    async def _read(self, protocol: Http11) -> None:
        while data := await self._reader.read(_MOST_AT_ONCE):
            # After its end a connection is read on for a while: closing a socket with bytes unread resets it, and a
            # client that is still sending what we refused would never see the refusal.
            if not self._ending:
                await protocol.handle(RawData(data))
        await protocol.handle(Closed())

    async def _send(self, event: Event) -> None:
        match event:
            case RawData():
                await self._write(event.data)
            case Updated():
                self.idle_since = asyncio.get_running_loop().time() if event.idle else None
                self._end_after(self._timeouts.idle if event.idle else None)
            case Closed() if not self._ending and not self._transport.is_closing():
                self._ending = True
                self._writer.write_eof()
                self._abort_after(_LINGER + self._unsent() / self._timeouts.least_rate)

    async def _write(self, data: bytes) -> None:
        """Raises CallerGone when nobody reads, or not fast enough."""
        if self._transport.is_closing():
            raise CallerGone
        self._writer.write(data)
        unsent = self._unsent()
        if unsent <= PIECE_BYTES:
            return
        with anyio.move_on_after(self._timeouts.patience(unsent)) as waiting:
            try:
                await self._writer.drain()
            except ConnectionError:
                raise CallerGone from None
        if waiting.cancelled_caught:
            log.debug("reader too slow", unsent=self._unsent())
            self._transport.abort()
            raise CallerGone

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def _end_after(self, seconds: float | None) -> None:
        """The head of the next request must be here until then; None while there is a request."""
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = None if seconds is None else loop.call_later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        self._ending = True
        self._transport.close()  # after what is written
        self._abort_after(self._timeouts.patience(self._unsent()))

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    async def _part(self) -> None:
        """Until the socket is closed, and everything sent that will be."""
        self._transport.close()
        self._abort_after(self._timeouts.patience(self._unsent()))
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
        finally:
            self._transport.abort()
            if self._deadline is not None:
                self._deadline.cancel()
