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

from common.api.fields import UINT32, Text, body_field
from common.refusal import Refused
from coordinatord.api.files import files_sql
from coordinatord.api.files.files_sql import UNATTACHED_LIFETIME, FileRemoval, FileRow, Purpose, StartedUpload
from coordinatord.api.files.inspection import Inspection, InspectionResult, new_inspection
from coordinatord.base.concurrency import read_ahead
from coordinatord.base.errors import Retryable
from coordinatord.base.thread_pipe import thread_pipe
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.pins.storage_budgets import UNLIMITED, StorageBudgets
from coordinatord.storage.pins.store import PinnedObject, PinStore

log = structlog.get_logger(__name__)

# Smaller pieces of a file are joined to at least this size. The pieces of an upload are larger already.
_MIN_PIECE_BYTES: Final = 1 << 18


@attrs.frozen(slots=True)
class ExpiresAfter:
    """Retention that a client requests for its file, with the field names of compatible clients.

    The operator sets the retention period, so any other value is rejected.
    """

    anchor: str = body_field(Text(64), "start of the retention period: `created_at`", example="created_at")
    seconds: int = body_field(UINT32, "the operator's retention period, in seconds", example=2_592_000)

    def check(self, retention_seconds: int, param: str) -> None:
        if (self.anchor, self.seconds) != ("created_at", retention_seconds):
            raise Refused(
                f"{param} must be left out, or have anchor created_at and seconds {retention_seconds}, the time for"
                " which this coordinator keeps used files; a file that no job, settle or batch uses is deleted after"
                f" {UNATTACHED_LIFETIME.seconds} s",
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
        """Store a wallet's upload. All `max_bytes` count against the owner's budget from the start.

        Raise Refused when the content does not match `purpose`, and Retryable `busy` beyond the owner's budget. Errors
        raised by `pieces` propagate. After an error or a cancellation, the row and the object are removed.
        """
        inspection = new_inspection(purpose)
        file_id = files_sql.new_file_id()
        async with self._reserve_row(file_id, owner, purpose, filename, max_bytes):
            pinned, inspected = await self._store_content(file_id, pieces, inspection)
            return await self._complete_upload(file_id, pinned, inspected, None)

    async def put_output(self, owner: bytes, filename: str, pieces: AsyncIterable[bytes], file_id: str) -> FileRow:
        """Store the output of a batch for the retention period. A repeated run with the same id replaces the earlier
        content."""
        async with self._reserve_row(file_id, owner, "batch_output", filename):
            key = files_sql.object_key(file_id)
            record_part = _PartRecorder(self.database, file_id)
            pinned = await self.pins.put_pieces(key, _join_pieces(pieces), before_part=record_part)
            return await self._complete_upload(file_id, pinned, InspectionResult(), self.retention_seconds)

    async def find(self, file_id: str, owner: bytes) -> FileRow | None:
        """Return a live file of this owner, or None."""
        async with self.database.connection() as connection:
            return await files_sql.find_file(connection, file_id, owner)

    def open(
        self, row: FileRow, first: int = 0, last: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream the file, or its bytes from `first` to `last` inclusive.

        Raise Retryable `object_missing` before the first byte when the store has lost the file.
        """
        return self.pins.read(files_sql.object_key(row.id), first=first, last=last)

    async def remove(self, removal: FileRemoval) -> None:
        """Remove a file, or an unfinished upload, whose removal this process has leased."""
        key = files_sql.object_key(removal.id)
        if removal.upload_id is not None:
            await self.pins.abort(key, removal.upload_id)
        await self.pins.delete(key)
        async with self.database.connection() as connection:
            await files_sql.delete_row(connection, removal.id)

    async def _store_content(
        self, file_id: str, pieces: AsyncIterable[bytes], inspection: Inspection
    ) -> tuple[PinnedObject, InspectionResult]:
        results: list[InspectionResult] = []

        async def inspect_pieces(received: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
            async for piece in received:
                await thread.queue_work(inspection.update, piece)
                yield piece
            await thread.wait_until_idle()
            results.append(inspection.finish())

        async with (
            thread_pipe() as thread,
            read_ahead(_join_pieces(pieces)) as received,
            read_ahead(inspect_pieces(received)) as checked,
        ):
            record_part = _PartRecorder(self.database, file_id)
            pinned = await self.pins.put_pieces(files_sql.object_key(file_id), checked, before_part=record_part)
        (result,) = results
        return pinned, result

    async def _complete_upload(
        self, file_id: str, pinned: PinnedObject, inspected: InspectionResult, retention_seconds: int | None
    ) -> FileRow:
        async with self.database.connection() as connection:
            row = await files_sql.complete_upload(
                connection,
                file_id,
                cid=pinned.cid,
                size=pinned.size,
                lines=inspected.line_count,
                commitment=inspected.commitment,
                retention_seconds=retention_seconds,
            )
        if row is None:
            raise _file_being_removed_error()
        return row

    @asynccontextmanager
    async def _reserve_row(
        self, file_id: str, owner: bytes, purpose: Purpose, filename: str, reserved: int = 0
    ) -> AsyncIterator[None]:
        """Insert the row of an upload. If the block fails, remove the row and the object, unless the row has the
        content of an earlier upload."""

        async def insert_row(connection: Connection) -> StartedUpload | None:
            started = await files_sql.begin_upload(connection, file_id, owner, purpose, filename, reserved=reserved)
            if started is not None and purpose != "batch_output":
                await self.budgets.check(connection, owner)
            return started

        started = await self.database.transact(insert_row)
        if started is None:
            raise _file_being_removed_error()
        try:
            if started.upload_id is not None:
                await self.pins.abort(files_sql.object_key(file_id), started.upload_id)
            yield
        except BaseException:
            with anyio.move_on_after(10, shield=True):
                await self._abandon_upload(file_id)
            raise

    async def _abandon_upload(self, file_id: str) -> None:
        try:
            async with self.database.connection() as connection:
                removal = await files_sql.lease_unfinished_upload(connection, file_id)
            if removal is not None:
                await self.remove(removal)
        except Retryable as error:
            # The janitor removes the row when it expires. The caller gets the original error.
            log.warning("upload left to the janitor", file=file_id, reason=error.message)


@attrs.frozen(slots=True)
class _PartRecorder:
    """Callback that runs before each part of an upload. It records the store's upload id and extends the row's life."""

    database: Database
    file_id: str

    async def __call__(self, upload_id: str) -> None:
        async with self.database.connection() as connection:
            if not await files_sql.record_part(connection, self.file_id, upload_id):
                raise _file_being_removed_error()


def _file_being_removed_error() -> Retryable:
    return Retryable("pinner_unavailable", "the file is being removed; try again", "store_unavailable", 2)


async def _join_pieces(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Join pieces to at least _MIN_PIECE_BYTES, except the last."""
    waiting: list[bytes] = []
    size = 0
    async for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _MIN_PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


@attrs.frozen(slots=True)
class Uploads:
    """Live uploads that submissions and settles refer to by content id."""

    database: Database
    retention_seconds: int

    async def find_input_upload(self, owner: bytes, cid: str) -> FileRow | None:
        async with self.database.connection() as connection:
            return await files_sql.find_by_cid(connection, owner, cid, "input")

    async def find_result_upload(self, owner: bytes, cid: str) -> FileRow | None:
        async with self.database.connection() as connection:
            return await files_sql.find_by_cid(connection, owner, cid, "result")

    async def hold(self, upload: FileRow, job_id: bytes) -> bool:
        """Keep an upload while an op that names it is undecided. Return False when the upload is gone."""
        async with self.database.connection() as connection:
            return await files_sql.hold_file(connection, upload.id, job_id)

    async def attach(self, upload: FileRow) -> None:
        """Keep an upload for the retention period, because its op took effect."""
        async with self.database.connection() as connection:
            await files_sql.attach_file(connection, upload.id, self.retention_seconds)
