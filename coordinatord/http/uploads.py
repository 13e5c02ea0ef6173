"""Read uploads (multipart forms) while they arrive, with limits on rate, number and memory.

An upload's share of the memory budget grows with the bytes that have arrived, up to MAX_HELD_BYTES. If the share were
reserved by the declared length, sixteen requests that send no body could use up the whole budget.
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
from coordinatord.http.bodies import BodyBudget, BudgetShare, CallerDisconnected, UnacceptableBody, refuse_encoded
from coordinatord.http.upload_forms import FORM_OVERHEAD_BYTES, FileTooLarge, UploadForm, boundary_of

# Maximum memory of one upload.
MAX_HELD_BYTES: Final = 16 << 20
# Memory counted when an upload begins, for bytes in the socket's receive buffer.
INITIAL_UPLOAD_BYTES: Final = 1 << 18
# The minimum rate applies after this time of waiting for the client.
_MIN_RATE_GRACE_S: Final = 5.0
_PIECE_BYTES: Final = 1 << 19
_MAX_DRAIN_BYTES: Final = 4 << 20
_MAX_DRAIN_S: Final = 2.0


class TransferLimits:
    """Limits on concurrent uploads (or downloads) of one caller's address and of one wallet."""

    def __init__(self, max_per_address: int, max_per_wallet: int, kind: str = "upload") -> None:
        self._limits = {"address": max_per_address, "wallet": max_per_wallet}
        self._kind = kind
        # Number of running transfers by kind and key, without zeros.
        self._running: dict[tuple[str, str | bytes], int] = {}

    @contextmanager
    def count_transfer(self, caller: str, wallet: bytes) -> Iterator[None]:
        """Count one transfer while the block runs. Raise Retryable `busy` at the limit."""
        keys: tuple[tuple[str, str | bytes], ...] = (("address", caller), ("wallet", wallet))
        for kind, key in keys:
            limit = self._limits[kind]
            if self._running.get((kind, key), 0) >= limit:
                message = f"one {kind} may have {limit} {self._kind}s at a time; wait until one of them ends"
                raise Retryable("busy", message)
        for under_way in keys:
            self._running[under_way] = self._running.get(under_way, 0) + 1
        try:
            yield
        finally:
            for under_way in keys:
                left = self._running.pop(under_way) - 1
                if left:
                    self._running[under_way] = left


@attrs.frozen(slots=True)
class UploadReader:
    """Reader of uploads. `budget` limits the memory of all uploads. Other bodies have a separate budget."""

    budget: BodyBudget
    transfers: TransferLimits
    # Maximum size of the file.
    max_bytes: int
    # Applies only to the time spent waiting for the client.
    min_bytes_per_s: int
    # Longest wait for more bytes.
    stall_s: float
    clock: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def open_form(
        self, receive: Receive, headers: RawHeaders, caller: str, wallet: bytes
    ) -> AsyncIterator[UploadForm]:
        """Yield the form of a request.

        If the `async with` block rejects the upload, read and drop the rest of the body within limits, so that the
        client can read the response.
        """
        refuse_encoded(headers)
        declared = first_header(headers, b"content-length")
        size = int(declared) if declared.isdecimal() else None
        body = _Body(receive, self)
        try:
            if size is not None and size > self.max_bytes + FORM_OVERHEAD_BYTES:
                raise FileTooLarge
            boundary = boundary_of(first_header(headers, b"content-type"))
            with self.transfers.count_transfer(caller, wallet):
                async with self.budget.open_share(caller) as share:
                    share.take_bytes(INITIAL_UPLOAD_BYTES)
                    yield UploadForm(boundary, body.pieces(share), self.max_bytes, size)
        except FileTooLarge:
            await body.drain()
            raise UnacceptableBody(responses.file_too_large(self.max_bytes)) from None
        except (Refused, Retryable):
            await body.drain()
            raise


class _Body:
    """Body of an upload, read in pieces. Only the time spent waiting for the client counts against the minimum rate,
    not the time that the object store takes."""

    def __init__(self, receive: Receive, limits: UploadReader) -> None:
        self._receive = receive
        self._limits = limits
        self._ended = False
        self._size, self._waited = 0, 0.0

    async def pieces(self, share: BudgetShare) -> AsyncIterator[bytes]:
        """Yield the first piece at once, because the first bytes of many uploads suffice to reject them. Join later
        pieces into larger ones, which cost less to process. The memory share grows with the bytes read."""
        wanted = 1
        while not self._ended:
            try:
                with anyio.fail_after(self._limits.stall_s) as deadline:
                    piece = await self._read_at_least(wanted, deadline)
            except TimeoutError:
                raise UnacceptableBody(responses.body_too_slow()) from None
            if piece:
                share.take_bytes(max(0, min(self._size, MAX_HELD_BYTES) - share.held))
                yield piece
            wanted = _PIECE_BYTES

    async def _read_at_least(self, wanted: int, deadline: anyio.CancelScope) -> bytes:
        """Return at least `wanted` bytes, or fewer at the end of the body.

        Arriving bytes extend the deadline, but only after a tenth of `stall_s` has passed, because moving a deadline is
        as slow as a read.
        """
        clock, limits = self._limits.clock, self._limits
        pieces: list[bytes] = []
        gathered, used = 0, 0.0
        while gathered < wanted and not self._ended:
            asked = clock()
            piece = await self._read_piece()
            waited = clock() - asked
            self._waited += waited
            used += waited
            self._size += len(piece)
            if self._size > limits.max_bytes + FORM_OVERHEAD_BYTES:
                raise FileTooLarge
            if (
                self._waited > _MIN_RATE_GRACE_S
                and self._size < (self._waited - _MIN_RATE_GRACE_S) * limits.min_bytes_per_s
            ):
                raise UnacceptableBody(responses.body_too_slow())
            if used > limits.stall_s / 10:
                deadline.deadline, used = anyio.current_time() + limits.stall_s, 0.0
            pieces.append(piece)
            gathered += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def drain(self) -> None:
        """Read and drop some of the body. Closing the connection with unread bytes would reset the connection, and the
        client might lose the response."""
        left = _MAX_DRAIN_BYTES
        with anyio.move_on_after(_MAX_DRAIN_S):
            while not self._ended and left > 0:
                left -= len(await self._read_piece())

    async def _read_piece(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise CallerDisconnected
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
