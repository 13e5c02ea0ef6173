"""Uploads: multipart forms read as they arrive, within limits of rate, number and memory.

An upload's share of that memory grows with what has arrived of it, up to what one may hold. By its declared length,
sixteen heads without a body would take it all.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
import attrs

from common.daemon.asgi import RawHeaders, Receive, first_header
from common.refusal import Refused
from coordinatord.base.errors import Retryable
from coordinatord.http import responses
from coordinatord.http.bodies import BodyBudget, BudgetShare, CallerGone, Unacceptable, refuse_encoded
from coordinatord.http.upload_forms import OVERHEAD_BYTES, FileTooLarge, UploadForm, boundary_of

HELD_BYTES: Final = 16 << 20  # the most that one upload holds on its way through
BEGUN_BYTES: Final = 1 << 18  # and the least, for what waits for it in the socket's inbox
_GRACE: Final = 5.0  # seconds of waiting before the least rate counts: slow starts are the network's
_PIECE_BYTES: Final = 1 << 19
_DRAIN_BYTES: Final = 4 << 20
_DRAIN_SECONDS: Final = 2.0


class UploadsAtOnce:
    """How many uploads are under way: of each caller, and of each wallet from wherever it calls."""

    def __init__(self, of_caller: int, of_wallet: int) -> None:
        self._most = {"address": of_caller, "wallet": of_wallet}
        self._under_way: dict[tuple[str, str | bytes], int] = {}  # of those who have any

    @contextmanager
    def one(self, caller: str, wallet: bytes) -> Iterator[None]:
        """Retryable `busy` where there are as many as there may be."""
        keys: tuple[tuple[str, str | bytes], ...] = (("address", caller), ("wallet", wallet))
        for whose, key in keys:
            most = self._most[whose]
            if self._under_way.get((whose, key), 0) >= most:
                raise Retryable("busy", f"one {whose} may send {most} uploads at a time; wait for one to end")
        for under_way in keys:
            self._under_way[under_way] = self._under_way.get(under_way, 0) + 1
        try:
            yield
        finally:
            for under_way in keys:
                left = self._under_way.pop(under_way) - 1
                if left:
                    self._under_way[under_way] = left


@attrs.frozen(slots=True)
class UploadReader:
    """`budget` is what all uploads of this process may hold together; bodies that are held whole have their own."""

    budget: BodyBudget
    at_once: UploadsAtOnce
    most_bytes: int  # of the file
    least_rate: int  # bytes per second, while we wait for the caller
    stall_s: float  # the longest wait for any byte
    clock: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def reading(
        self, receive: Receive, headers: RawHeaders, caller: str, wallet: bytes
    ) -> AsyncIterator[UploadForm]:
        """The form of a request. What ends the block early is answered; the rest of the body is read and dropped as
        far as that is cheap, so that the caller is there to hear the answer."""
        refuse_encoded(headers)
        declared = first_header(headers, b"content-length")
        size = int(declared) if declared.isdecimal() else None
        body = _Body(receive, self)
        try:
            if size is not None and size > self.most_bytes + OVERHEAD_BYTES:
                raise FileTooLarge
            boundary = boundary_of(first_header(headers, b"content-type"))
            with self.at_once.one(caller, wallet):
                async with self.budget.share(caller) as share:
                    share.take(BEGUN_BYTES)
                    yield UploadForm(boundary, body.pieces(share), self.most_bytes, size)
        except FileTooLarge:
            await body.drain()
            raise Unacceptable(responses.file_too_large(self.most_bytes)) from None
        except (Refused, Retryable):
            await body.drain()
            raise


class _Body:
    """Pieces of a body as the server hands them over. Only the time in which we wait for them counts against the
    caller: when the store is slow, that is ours."""

    def __init__(self, receive: Receive, limits: UploadReader) -> None:
        self._receive = receive
        self._limits = limits
        self._ended = False
        self._size, self._waited = 0, 0.0

    async def pieces(self, share: BudgetShare) -> AsyncIterator[bytes]:
        """The first as soon as it is here, since much of what is refused is refused by it; then joined to larger ones:
        what follows costs per piece. The share grows with them."""
        wanted = 1
        while not self._ended:
            try:
                with anyio.fail_after(self._limits.stall_s) as patience:
                    piece = await self._gather(wanted, patience)
            except TimeoutError:
                raise Unacceptable(responses.body_too_slow()) from None
            if piece:
                share.take(max(0, min(self._size, HELD_BYTES) - share.held))
                yield piece
            wanted = _PIECE_BYTES

    async def _gather(self, wanted: int, patience: anyio.CancelScope) -> bytes:
        """At least so many bytes, unless the body ends. What comes renews the patience (when a tenth of it is used up:
        to set a deadline costs as much as to take a piece)."""
        clock, limits = self._limits.clock, self._limits
        pieces: list[bytes] = []
        gathered, used = 0, 0.0
        while gathered < wanted and not self._ended:
            asked = clock()
            piece = await self._next()
            waited = clock() - asked
            self._waited += waited
            used += waited
            self._size += len(piece)
            if self._size > limits.most_bytes + OVERHEAD_BYTES:
                raise FileTooLarge
            if self._waited > _GRACE and self._size < (self._waited - _GRACE) * limits.least_rate:
                raise Unacceptable(responses.body_too_slow())
            if used > limits.stall_s / 10:
                patience.deadline, used = anyio.current_time() + limits.stall_s, 0.0
            pieces.append(piece)
            gathered += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def drain(self) -> None:
        """Closing a connection with bytes unread resets it, and the answer may be lost with it."""
        left = _DRAIN_BYTES
        with anyio.move_on_after(_DRAIN_SECONDS):
            while not self._ended and left > 0:
                left -= len(await self._next())

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
