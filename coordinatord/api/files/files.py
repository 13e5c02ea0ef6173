"""Files in the pin store: uploads of wallets, and output of batches.

A row is written before the upload, so that a crash leaves no unknown object in the store. Receiving, sending and
hashing run concurrently, hashing in threads. An upload takes as long as the slowest of the three. It holds only a few
pieces and two parts in memory.
"""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import anyio
import attrs
import structlog

from common.api.fields import UINT32, Text, wire
from common.refusal import Refused
from coordinatord.api.files import files_sql
from coordinatord.api.files.files_sql import UNATTACHED, FileRemoval, FileRow, Purpose, StartedUpload
from coordinatord.api.files.inspection import Inspection, InspectionResult, inspection_of
from coordinatord.base.concurrency import read_ahead
from coordinatord.base.errors import Retryable
from coordinatord.base.thread_pipe import thread_pipe
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.pins.storage_budgets import UNLIMITED, StorageBudgets
from coordinatord.storage.pins.store import Pinned, PinStore

log = structlog.get_logger(__name__)

# Smallest piece for a thread. It is half of the upload reader's piece size, so the reader's pieces pass unchanged.
_PIECE_BYTES: Final = 1 << 18


@attrs.frozen(slots=True)
class ExpiresAfter:
    """Life of a file as the client requests it, with the field names of compatible clients.

    The operator sets the retention period, so any other value is rejected.
    """

    anchor: str = wire(Text(64), "where the time counts from: `created_at`", example="created_at")
    seconds: int = wire(UINT32, "the operator's retention period, in seconds", example=2_592_000)

    def check(self, retention_seconds: int, param: str) -> None:
        if (self.anchor, self.seconds) != ("created_at", retention_seconds):
            raise Refused(
                f"{param} must be left out, or be created_at and {retention_seconds} seconds: so long files are kept"
                " here once they are used; one that no job, settle or batch uses is gone after"
                f" {UNATTACHED.seconds} s",
                param,
            )


@attrs.frozen(slots=True)
class FileStore:
    database: Database
    pins: PinStore
    retention_seconds: int
    budgets: StorageBudgets = UNLIMITED

    async def upload(
        self, owner: bytes, purpose: Purpose, filename: str, pieces: AsyncIterable[bytes], max_bytes: int = 0
    ) -> FileRow:
        """Store a wallet's upload of at most `max_bytes`, which count for the owner from the start.

        Raise Refused when the content does not match `purpose`, and Retryable `busy` beyond the owner's budget. Errors
        of `pieces` are passed on. Nothing is kept on an error or a cancellation.
        """
        inspection = inspection_of(purpose)
        file_id = files_sql.new_id()
        async with self._row(file_id, owner, purpose, filename, max_bytes):
            pinned, inspected = await self._put(file_id, pieces, inspection)
            return await self._completed(file_id, pinned, inspected, None)

    async def put_output(self, owner: bytes, filename: str, pieces: AsyncIterable[bytes], file_id: str) -> FileRow:
        """Store the output of a batch, attached from the start. A repeated run with the same id replaces the earlier
        content."""
        async with self._row(file_id, owner, "batch_output", filename):
            key = files_sql.object_key(file_id)
            noting = _NotePart(self.database, file_id)
            pinned = await self.pins.put_pieces(key, _gathered(pieces), before_part=noting)
            return await self._completed(file_id, pinned, InspectionResult(), self.retention_seconds)

    async def find(self, file_id: str, owner: bytes) -> FileRow | None:
        """Return a live file of this owner, or None."""
        async with self.database.connection() as connection:
            return await files_sql.find(connection, file_id, owner)

    def open(
        self, row: FileRow, first: int = 0, last: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream the file, or its bytes from `first` to `last` inclusive.

        Raise Retryable `object_missing` before the first byte when the store has lost the file.
        """
        return self.pins.read(files_sql.object_key(row.id), first=first, last=last)

    async def remove(self, doomed: FileRemoval) -> None:
        """Remove a file after leasing its removal, including an unfinished upload."""
        key = files_sql.object_key(doomed.id)
        if doomed.upload_id is not None:
            await self.pins.abort(key, doomed.upload_id)
        await self.pins.delete(key)
        async with self.database.connection() as connection:
            await files_sql.forget(connection, doomed.id)

    async def _put(
        self, file_id: str, pieces: AsyncIterable[bytes], inspection: Inspection
    ) -> tuple[Pinned, InspectionResult]:
        results: list[InspectionResult] = []

        async def inspected(received: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
            async for piece in received:
                await thread.take(inspection.update, piece)
                yield piece
            await thread.idle()
            results.append(inspection.finish())

        async with (
            thread_pipe() as thread,
            read_ahead(_gathered(pieces)) as received,
            read_ahead(inspected(received)) as checked,
        ):
            noting = _NotePart(self.database, file_id)
            pinned = await self.pins.put_pieces(files_sql.object_key(file_id), checked, before_part=noting)
        (result,) = results
        return pinned, result

    async def _completed(
        self, file_id: str, pinned: Pinned, inspected: InspectionResult, retention_seconds: int | None
    ) -> FileRow:
        async with self.database.connection() as connection:
            row = await files_sql.complete(
                connection,
                file_id,
                cid=pinned.cid,
                size=pinned.size,
                lines=inspected.lines,
                commitment=inspected.commitment,
                retention_seconds=retention_seconds,
            )
        if row is None:
            raise _lost_row()
        return row

    @asynccontextmanager
    async def _row(
        self, file_id: str, owner: bytes, purpose: Purpose, filename: str, reserved: int = 0
    ) -> AsyncIterator[None]:
        """Hold the row of an upload. If the block fails, remove row and object, unless the row holds earlier
        content."""

        async def body(connection: Connection) -> StartedUpload | None:
            begun = await files_sql.begin(connection, file_id, owner, purpose, filename, reserved=reserved)
            if begun is not None and purpose != "batch_output":
                await self.budgets.check(connection, owner)
            return begun

        begun = await self.database.transact(body)
        if begun is None:
            raise _lost_row()
        try:
            if begun.upload_id is not None:
                await self.pins.abort(files_sql.object_key(file_id), begun.upload_id)
            yield
        except BaseException:
            with anyio.move_on_after(10, shield=True):
                await self._give_up(file_id)
            raise

    async def _give_up(self, file_id: str) -> None:
        try:
            async with self.database.connection() as connection:
                doomed = await files_sql.give_up(connection, file_id)
            if doomed is not None:
                await self.remove(doomed)
        except Retryable as error:
            # The janitor handles the row at its deadline. The caller gets the original error.
            log.warning("upload left to the janitor", file=file_id, reason=error.message)


@attrs.frozen(slots=True)
class _NotePart:
    """Callback before each part: record the store's upload id and extend the row's life."""

    database: Database
    file_id: str

    async def __call__(self, upload_id: str) -> None:
        async with self.database.connection() as connection:
            if not await files_sql.note_part(connection, self.file_id, upload_id):
                raise _lost_row()


def _lost_row() -> Retryable:
    return Retryable("pinner_unavailable", "the file is being removed; try again", "store_unavailable", 2)


async def _gathered(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Join pieces to sizes that suit a thread."""
    waiting: list[bytes] = []
    size = 0
    async for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


@attrs.frozen(slots=True)
class Uploads:
    """Live uploads that submissions and settles refer to by content id."""

    database: Database
    retention_seconds: int

    async def find_input(self, owner: bytes, cid: str) -> FileRow | None:
        async with self.database.connection() as connection:
            return await files_sql.find_by_cid(connection, owner, cid, "input")

    async def find_result(self, owner: bytes, cid: str) -> FileRow | None:
        async with self.database.connection() as connection:
            return await files_sql.find_by_cid(connection, owner, cid, "result")

    async def hold(self, upload: FileRow, job_id: bytes) -> bool:
        """Keep an upload while an op that names it is undecided. Return False when the upload is gone."""
        async with self.database.connection() as connection:
            return await files_sql.hold(connection, upload.id, job_id)

    async def attach(self, upload: FileRow) -> None:
        """Keep an upload for the retention period, because its op took effect."""
        async with self.database.connection() as connection:
            await files_sql.attach(connection, upload.id, self.retention_seconds)
