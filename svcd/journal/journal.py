"""Write-ahead journal of the provider's commitments.

A write returns when it is on the disk. Writes that arrive during a commit share the next one. A failed read or write is
retried for as long as the caller waits, because the daemon must not act without the entry.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, TypeVar

import attrs
import structlog
import trio

from common.daemon.process import Fatal
from svcd.journal import entries
from svcd.journal.book_row import Job
from svcd.journal.entries import Home, JobEntry, JournalState, OwnerRecord, Statement
from svcd.journal.result_files import MAX_ROW_BYTES, ResultFiles

log = structlog.get_logger(__name__)

T = TypeVar("T")

JOURNAL_FILE: Final = "journal.sqlite3"
_LOCK_FILE: Final = "lock"
_RETENTION_S: Final = 3 * 86_400  # an order lives at most two days: one until its claim and one for its SLA
_CLEANUP_INTERVAL_S: Final = 3600.0
_RETRY_S: Final = 1.0
_MAX_SIGNING_LEAD_S: Final = 3540  # the chain accepts times up to an hour ahead of its clock


@attrs.define(slots=True, eq=False)
class _PendingWrite:
    statement: Statement
    done: bool = False
    rows_changed: int = 0


class Journal:
    """Journal of one state directory. `wall` returns Unix seconds."""

    def __init__(self, connection: sqlite3.Connection, files: ResultFiles, wall: Callable[[], float]) -> None:
        self._connection = connection
        self._files = files
        self._wall = wall
        self._turn = trio.Lock()  # guards the connection
        self._pending: list[_PendingWrite] = []
        self.works = True  # False while the disk refuses reads or writes

    async def claiming(self, job: Job, model: str) -> bool:
        """Return False, and keep the entry, for a job that has a result or has ended."""
        return await self._write(entries.claiming(job, model, self._wall())) > 0

    async def adopted(self, job: Job, model: str) -> None:
        await self._write(entries.adopted(job, model, self._wall()))

    async def claimed(self, job_id: bytes) -> None:
        await self._write(entries.claimed(job_id, self._wall()))

    async def sealed(self, job_id: bytes, completion_tok: int, result: bytes) -> None:
        inline = result if len(result) <= MAX_ROW_BYTES else None
        if inline is None:
            await self._retry(lambda: self._files.store(job_id, result))
        await self._write(entries.sealed(job_id, completion_tok, inline, len(result), self._wall()))

    async def item_finished(self, job_id: bytes, number: int, result: bytes) -> None:
        await self._write(entries.item_finished(job_id, number, result))

    async def items(self, job_id: bytes) -> dict[int, bytes]:
        """Return the finished items of a bundle, encrypted, by number."""
        return await self._read(lambda connection: entries.read_items(connection, job_id))

    async def uploaded(self, job_id: bytes, cid: str) -> None:
        await self._write(entries.uploaded(job_id, cid, self._wall()))

    async def failing(self, job_id: bytes, reason: str) -> None:
        await self._write(entries.failing(job_id, reason, self._wall()))

    async def ended(self, job_id: bytes, state: JournalState, reason: str | None = None) -> None:
        await self._write(entries.ended(job_id, state, reason, self._wall()))
        if self._files.has(job_id):
            await self._retry(lambda: self._files.remove(job_id))

    async def live(self) -> list[JobEntry]:
        return await self._read(entries.read_live)

    async def job(self, job_id: bytes) -> Job | None:
        """Return the job as it was last claimed, or None if it has no entry."""
        return await self._read(lambda connection: entries.read_job(connection, job_id))

    async def state(self, job_id: bytes) -> JournalState | None:
        """Return None for a job without an entry."""
        return await self._read(lambda connection: entries.read_state(connection, job_id))

    async def unknown(self, job_ids: Collection[bytes]) -> set[bytes]:
        """Return the jobs that, according to the journal, this provider never claimed."""
        return await self._read(lambda connection: entries.read_unknown(connection, job_ids))

    async def owner(self, owner: bytes) -> OwnerRecord:
        return await self._read(lambda connection: entries.read_owner(connection, owner))

    async def failed_before(self) -> set[bytes]:
        return await self._read(entries.read_failed)

    async def open_result(self, job_id: bytes) -> bytes | BinaryIO:
        """Return the sealed result of a job, as bytes or as an open file."""
        inline = await self._read(lambda connection: entries.read_result(connection, job_id))
        return inline if inline is not None else await self._retry(lambda: self._files.open(job_id))

    async def forget(self) -> None:
        """Delete the entries of jobs that ended longer ago than the retention time."""
        await self._write(entries.forgotten(self._wall() - _RETENTION_S))

    async def keep_small(self) -> NoReturn:
        while True:
            await trio.sleep(_CLEANUP_INTERVAL_S)
            await self.forget()

    async def tidy(self) -> None:
        """Delete old entries and orphaned result files. Call this before the stages start."""
        await self.forget()
        live = [entry.job.job_id for entry in await self.live()]
        await self._retry(lambda: self._files.keep_only(live))

    async def belongs_to(self, home: Home) -> None:
        """Raise `Fatal` if the journal belongs to another wallet or market, because its jobs would all be given up."""
        known = await self._read(entries.read_home)
        if known is None:
            await self._write(entries.insert_home(home))
        elif known != home:
            raise Fatal(f"the state directory belongs to {known}, not to {home}: set another state_directory")

    async def next_time(self, name: str, *, skip: int = 0) -> int:
        """Return a Unix time for signing, newer than every earlier one, including those before a restart.

        The time is never further ahead than the chain accepts. If the stored one is, the clock was wrong and the chain
        accepted none of those times, so counting restarts from now.
        """
        now = int(self._wall())
        before = await self._read(lambda connection: entries.read_latest(connection, name))
        value = (
            now if before >= now + _MAX_SIGNING_LEAD_S else min(max(now, before + 1 + skip), now + _MAX_SIGNING_LEAD_S)
        )
        await self.note(name, value)
        return value

    async def note(self, name: str, value: int) -> None:
        await self._write(entries.latest(name, value))

    async def noted(self, name: str) -> int:
        """Return the noted value, or 0."""
        return await self._read(lambda connection: entries.read_latest(connection, name))

    async def _write(self, statement: Statement) -> int:
        """Run the statement in the next commit. Return the number of changed rows."""
        mine = _PendingWrite(statement)
        self._pending.append(mine)
        try:
            while not mine.done:
                async with self._turn:
                    if not mine.done:
                        await self._commit()
        finally:
            if mine in self._pending:  # cancelled before the commit
                self._pending.remove(mine)
        return mine.rows_changed

    async def _commit(self) -> None:
        batch, self._pending = self._pending, []
        try:
            # Shielded: after cancellation it would be unknown whether the thread committed.
            with trio.CancelScope(shield=True):
                changed = await trio.to_thread.run_sync(_commit, self._connection, [one.statement for one in batch])
        except Exception as error:
            self._pending = batch + self._pending
            if not _is_disk_failure(error):
                raise  # a statement is wrong: the other writers retry theirs
            await self._wait_for_disk(error)
        else:
            self.works = True
            for one, rows in zip(batch, changed, strict=True):
                one.done, one.rows_changed = True, rows

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        async with self._turn:
            return await self._retry(lambda: read(self._connection))

    async def _retry(self, act: Callable[[], T]) -> T:
        """Run `act` in a thread, and retry while the disk fails."""
        refused = False
        while True:
            try:
                result = await trio.to_thread.run_sync(act)
            except Exception as error:
                if not _is_disk_failure(error):
                    raise
                refused = True
                await self._wait_for_disk(error)
            else:
                if refused:
                    self.works = not self._pending  # a pending write reports its own outcome
                return result

    async def _wait_for_disk(self, refused: Exception) -> None:
        if self.works:
            log.error("journal unavailable", reason=str(refused))
        self.works = False
        await trio.sleep(_RETRY_S)


def _is_disk_failure(error: Exception) -> bool:
    """Return True for a failing disk or a damaged database, and False for a bug.

    `DatabaseError` itself reports a damaged file. Its other subclasses report wrong statements and values.
    """
    return isinstance(error, OSError | sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _commit(connection: sqlite3.Connection, statements: list[Statement]) -> list[int]:
    """Run the statements in one transaction. Return the number of rows that each changed."""
    connection.execute("begin immediate")
    try:
        changed = [connection.execute(sql, values).rowcount for sql, values in statements]
        connection.execute("commit")
        return changed
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


@asynccontextmanager
async def open_journal(directory: Path, wall: Callable[[], float] = time.time) -> AsyncIterator[Journal]:
    """Lock the state directory and open its journal. Two daemons on one wallet would interfere with each other."""
    try:
        for private in (directory, directory / "results"):
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(PermissionError):  # another user owns the volume; the files inside are private
                private.chmod(0o700)
        lock = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as broken:
        raise Fatal(f"the state directory {directory} cannot be used: {broken.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fatal(f"another svcd runs on the state directory {directory}: stop it first") from None
        connection = entries.open_database(directory / JOURNAL_FILE)
        try:
            journal = Journal(connection, ResultFiles(directory / "results"), wall)
            await journal.tidy()
            yield journal
        finally:
            connection.close()
    finally:
        os.close(lock)


def is_in_use(directory: Path) -> bool:
    """Return True if a daemon runs on this state directory. Creates no files and keeps no lock."""
    try:
        lock = os.open(directory / _LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
