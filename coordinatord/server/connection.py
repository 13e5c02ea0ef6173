"""One client's connection: bytes between its socket and the protocol, and an end to whoever takes too long.

socket ──► reader ──► Http11 ──► inbox ──► handler
   ▲                                          │
   └────────── writer ◄──── Http11 ◄──────────┘
"""

import asyncio
from typing import Final

import anyio
import structlog
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.typing import AppWrapper

from coordinatord.api.bodies import CallerGone
from coordinatord.api.cors import Origins
from coordinatord.server.handlers import Handlers
from coordinatord.server.http11 import Http11
from coordinatord.server.pace import Pace

log = structlog.get_logger(__name__)

PIECE: Final = 1 << 16
_MOST_AT_ONCE: Final = 1 << 18  # of what came; a large body costs by the piece
_LINGER: Final = 2.0  # seconds for a client to close its side after we closed ours


class Connection:
    """`run` it to its end. `finish` when no further request is wanted, `give_way` when another needs its place, `abort`
    to end it now. `address`: the client's; `idle_since`: when it had a request last, None while it has one."""

    def __init__(self, pace: Pace, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self.address: str = peer[0] if peer else "unknown"
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self._pace = pace
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        self._ending = False
        self._deadline: asyncio.TimerHandle | None = None

    async def run(self, app: AppWrapper, config: Config, context: WorkerContext, origins: Origins) -> None:
        try:
            self._end_after(self._pace.idle)
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
                self._end_after(self._pace.idle if event.idle else None)
            case Closed() if not self._ending and not self._transport.is_closing():
                self._ending = True
                self._writer.write_eof()
                self._abort_after(_LINGER + self._unsent() / self._pace.least_rate)

    async def _write(self, data: bytes) -> None:
        """Raises CallerGone when nobody reads, or not fast enough."""
        if self._transport.is_closing():
            raise CallerGone
        self._writer.write(data)
        unsent = self._unsent()
        if unsent <= PIECE:
            return
        with anyio.move_on_after(self._pace.patience(unsent)) as waiting:
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
        self._abort_after(self._pace.patience(self._unsent()))

    def _abort_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    async def _part(self) -> None:
        """Until the socket is closed, and everything sent that will be."""
        self._transport.close()
        self._abort_after(self._pace.patience(self._unsent()))
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
        finally:
            self._transport.abort()
            if self._deadline is not None:
                self._deadline.cancel()
