"""Read uploads (multipart forms) while they arrive, with limits on rate, number and memory.

An upload's share of the memory budget grows with the bytes that have arrived, up to MAX_UPLOAD_MEMORY_BYTES. If the
declared length were reserved, sixteen requests that send no body could use up the whole budget.
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
from coordinatord.http.bodies import (
    BodyBudget,
    BudgetShare,
    ClientDisconnected,
    UnacceptableBody,
    reject_compressed_body,
)
from coordinatord.http.upload_forms import FORM_OVERHEAD_BYTES, FileTooLarge, UploadForm, read_form_boundary

# Maximum bytes of the memory budget that one upload may use.
MAX_UPLOAD_MEMORY_BYTES: Final = 16 << 20
# Memory reserved when an upload begins, for bytes in the socket's receive buffer.
INITIAL_UPLOAD_MEMORY_BYTES: Final = 1 << 18
# Total time of waiting for the client after which the minimum rate applies.
_MIN_RATE_GRACE_S: Final = 5.0
# Size of the pieces that are passed to the handler.
_PIECE_BYTES: Final = 1 << 19
_MAX_DRAIN_BYTES: Final = 4 << 20
_MAX_DRAIN_S: Final = 2.0


class TransferLimits:
    """Limits on concurrent uploads (or downloads) of one caller's address and of one wallet."""

    def __init__(self, max_per_address: int, max_per_wallet: int, direction: str = "upload") -> None:
        self._limits = {"address": max_per_address, "wallet": max_per_wallet}
        self._direction = direction
        # Number of running transfers of each address and wallet. Those without transfers have no entry.
        self._running: dict[tuple[str, str | bytes], int] = {}

    @contextmanager
    def count_transfer(self, caller: str, wallet: bytes) -> Iterator[None]:
        """Count one transfer while the block runs. Raise Retryable `busy` at the limit."""
        keys: tuple[tuple[str, str | bytes], ...] = (("address", caller), ("wallet", wallet))
        for key in keys:
            limit = self._limits[key[0]]
            if self._running.get(key, 0) >= limit:
                message = (
                    f"one {key[0]} may run at most {limit} {self._direction}s at a time; wait until one of them ends"
                )
                raise Retryable("busy", message)
        for key in keys:
            self._running[key] = self._running.get(key, 0) + 1
        try:
            yield
        finally:
            for key in keys:
                remaining = self._running.pop(key) - 1
                if remaining:
                    self._running[key] = remaining


@attrs.frozen(slots=True)
class UploadReader:
    """Reads uploads. `budget` limits the memory of all uploads. Other bodies have a separate budget."""

    budget: BodyBudget
    transfers: TransferLimits
    # Maximum size of the file.
    max_bytes: int
    # Minimum average rate, measured only while waiting for the client.
    min_bytes_per_s: int
    # Longest wait for more bytes.
    stall_timeout_s: float
    clock: Callable[[], float] = time.monotonic

    @asynccontextmanager
    async def open_form(
        self, receive: Receive, headers: RawHeaders, caller: str, wallet: bytes
    ) -> AsyncIterator[UploadForm]:
        """Yield the form of a request.

        If the `async with` block raises Refused or Retryable, read and drop some of the remaining body, so that the
        client can read the response.
        """
        reject_compressed_body(headers)
        declared = first_header(headers, b"content-length")
        size = int(declared) if declared.isdecimal() else None
        body = _Body(receive, self)
        try:
            if size is not None and size > self.max_bytes + FORM_OVERHEAD_BYTES:
                raise FileTooLarge
            boundary = read_form_boundary(first_header(headers, b"content-type"))
            with self.transfers.count_transfer(caller, wallet):
                async with self.budget.open_share(caller) as share:
                    share.reserve_bytes(INITIAL_UPLOAD_MEMORY_BYTES)
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

    def __init__(self, receive: Receive, reader: UploadReader) -> None:
        self._receive = receive
        self._reader = reader
        self._ended = False
        self._size, self._waited = 0, 0.0

    async def pieces(self, share: BudgetShare) -> AsyncIterator[bytes]:
        """Yield the body in pieces. Yield the first bytes at once, because many uploads can be rejected by their first
        bytes. Join later bytes into larger pieces, which cost less to process. `share` grows with the bytes read."""
        min_bytes = 1
        while not self._ended:
            try:
                with anyio.fail_after(self._reader.stall_timeout_s) as deadline:
                    piece = await self._read_at_least(min_bytes, deadline)
            except TimeoutError:
                raise UnacceptableBody(responses.body_too_slow()) from None
            if piece:
                share.reserve_bytes(max(0, min(self._size, MAX_UPLOAD_MEMORY_BYTES) - share.reserved))
                yield piece
            min_bytes = _PIECE_BYTES

    async def _read_at_least(self, min_bytes: int, deadline: anyio.CancelScope) -> bytes:
        """Return at least `min_bytes` bytes, or fewer at the end of the body.

        Arriving bytes extend the deadline, but only after a tenth of `stall_timeout_s` has passed, because moving a
        deadline is as slow as a read.
        """
        clock, reader = self._reader.clock, self._reader
        pieces: list[bytes] = []
        gathered, since_extension = 0, 0.0
        while gathered < min_bytes and not self._ended:
            started = clock()
            piece = await self._read_piece()
            waited = clock() - started
            self._waited += waited
            since_extension += waited
            self._size += len(piece)
            if self._size > reader.max_bytes + FORM_OVERHEAD_BYTES:
                raise FileTooLarge
            if (
                self._waited > _MIN_RATE_GRACE_S
                and self._size < (self._waited - _MIN_RATE_GRACE_S) * reader.min_bytes_per_s
            ):
                raise UnacceptableBody(responses.body_too_slow())
            if since_extension > reader.stall_timeout_s / 10:
                deadline.deadline, since_extension = anyio.current_time() + reader.stall_timeout_s, 0.0
            pieces.append(piece)
            gathered += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def drain(self) -> None:
        """Read and drop some of the body. Closing the connection with unread bytes would reset the connection, and the
        client might lose the response."""
        remaining = _MAX_DRAIN_BYTES
        with anyio.move_on_after(_MAX_DRAIN_S):
            while not self._ended and remaining > 0:
                remaining -= len(await self._read_piece())

    async def _read_piece(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        self._ended = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece
