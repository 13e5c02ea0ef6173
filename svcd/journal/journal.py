"""Write-ahead journal of the provider's commitments.

A write returns after its commit is on the disk. Writes that arrive during a commit share the next commit. A failed read
or write is retried as long as the caller waits, because the daemon must not act without the entry.
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
from svcd.journal import entries, history
from svcd.journal.book_row import Job
from svcd.journal.entries import JobEntry, JournalBinding, JournalState, OwnerRecord
from svcd.journal.history import Statement
from svcd.journal.result_files import MAX_ROW_BYTES, ResultFiles

log = structlog.get_logger(__name__)

T = TypeVar("T")

JOURNAL_FILE: Final = "journal.sqlite3"
_LOCK_FILE: Final = "lock"
_RETENTION_S: Final = 3 * 86_400  # an order lasts at most two days: one until its claim and one for its window
_CLEANUP_INTERVAL_S: Final = 3600.0
_RETRY_PAUSE_S: Final = 1.0
_MAX_SIGNING_LEAD_S: Final = 3540  # the chain accepts signing times up to an hour ahead of its own time


@attrs.define(slots=True, eq=False)
class _PendingWrite:
    statements: tuple[Statement, ...]
    is_done: bool = False
    rows_changed: int = 0
    commits_alone: bool = False  # in a transaction without other writes


class Journal:
    """Journal of one state directory. `unix_clock` returns Unix seconds."""

    def __init__(self, connection: sqlite3.Connection, files: ResultFiles, unix_clock: Callable[[], float]) -> None:
        self._connection = connection
        self._files = files
        self._unix_clock = unix_clock
        self._lock = trio.Lock()  # guards the connection
        self._pending: list[_PendingWrite] = []
        self.is_working = True  # False while reads or writes of the disk fail

    async def record_claiming(self, job: Job, model: str) -> bool:
        """Store that a claim will be sent. If the job has a result or has ended, change nothing and return False."""
        return await self._write(entries.insert_claiming(job, model, self._unix_clock())) > 0

    async def record_adopted(self, job: Job, model: str) -> None:
        await self._write(entries.insert_adopted(job, model, self._unix_clock()))

    async def record_claimed(self, job_id: bytes) -> None:
        await self._write(entries.mark_claimed(job_id, self._unix_clock()))

    async def record_sealed(self, job_id: bytes, completion_tok: int, result: bytes) -> None:
        inline = result if len(result) <= MAX_ROW_BYTES else None
        if inline is None:
            await self._retry(lambda: self._files.store(job_id, result))
        await self._write(entries.mark_sealed(job_id, completion_tok, inline, len(result), self._unix_clock()))

    async def record_finished_item(self, job_id: bytes, number: int, result: bytes) -> None:
        await self._write(entries.insert_item(job_id, number, result))

    async def read_items(self, job_id: bytes) -> dict[int, bytes]:
        """Return the finished items of a bundle, encrypted, by number."""
        return await self._read(lambda connection: entries.read_items(connection, job_id))

    async def record_upload(self, job_id: bytes, cid: str) -> None:
        await self._write(entries.mark_uploaded(job_id, cid, self._unix_clock()))

    async def record_failing(self, job_id: bytes, reason: str) -> None:
        await self._write(entries.mark_failing(job_id, reason, self._unix_clock()))

    async def record_end(self, job_id: bytes, state: JournalState, reason: str | None = None) -> None:
        now = self._unix_clock()
        await self._write(*history.count_ended_job(job_id, state, now), entries.mark_ended(job_id, state, reason, now))
        if self._files.has(job_id):
            await self._retry(lambda: self._files.remove(job_id))

    async def read_live_entries(self) -> list[JobEntry]:
        return await self._read(entries.read_live_entries)

    async def read_job(self, job_id: bytes) -> Job | None:
        """Return the job as stored before its latest claim, or None if the job has no entry."""
        return await self._read(lambda connection: entries.read_job(connection, job_id))

    async def read_job_state(self, job_id: bytes) -> JournalState | None:
        """Return the job's state, or None if the job has no entry."""
        return await self._read(lambda connection: entries.read_job_state(connection, job_id))

    async def find_unknown_jobs(self, job_ids: Collection[bytes]) -> set[bytes]:
        """Return the ids of jobs that this provider, according to the journal, never claimed."""
        return await self._read(lambda connection: entries.find_unknown_jobs(connection, job_ids))

    async def read_owner_record(self, owner: bytes) -> OwnerRecord:
        return await self._read(lambda connection: entries.read_owner_record(connection, owner))

    async def read_failed_ids(self) -> set[bytes]:
        return await self._read(entries.read_failed_ids)

    async def open_result(self, job_id: bytes) -> bytes | BinaryIO:
        """Return the sealed result of a job, as bytes or as an open file."""
        inline = await self._read(lambda connection: entries.read_result(connection, job_id))
        return inline if inline is not None else await self._retry(lambda: self._files.open(job_id))

    async def delete_expired(self) -> None:
        """Delete the entries of jobs that ended longer ago than the retention time, and old history."""
        now = self._unix_clock()
        await self._write(entries.delete_ended(now - _RETENTION_S), *history.delete_old_history(now))

    async def run_cleanup(self) -> NoReturn:
        while True:
            await trio.sleep(_CLEANUP_INTERVAL_S)
            await self.delete_expired()

    async def clean_up(self) -> None:
        """Delete old entries and orphaned result files. Call this before the stages start."""
        await self.delete_expired()
        live = [entry.job.job_id for entry in await self.read_live_entries()]
        await self._retry(lambda: self._files.delete_except(live))

    async def bind_to_market(self, binding: JournalBinding) -> None:
        """Bind a new journal to this wallet and market.

        Raise `Fatal` for a journal of another wallet or market, because the daemon would give up the jobs in it.
        """
        known = await self._read(entries.read_binding)
        if known is None:
            await self._write(entries.insert_binding(binding))
        elif known != binding:
            raise Fatal(f"the state directory belongs to {known}, not to {binding}: set another state_directory")

    async def next_signing_time(self, name: str, *, skip_s: int = 0) -> int:
        """Return a Unix time for signing that is newer than every earlier signing time, even after a restart.

        The result is newer by more than `skip_s` seconds, but at most as far ahead as the chain accepts. If the stored
        time is even further ahead, a wrong clock caused it, and the chain rejected the signatures. Then return the
        current time.
        """
        now = int(self._unix_clock())
        before = await self._read(lambda connection: entries.read_value(connection, name))
        value = (
            now
            if before >= now + _MAX_SIGNING_LEAD_S
            else min(max(now, before + 1 + skip_s), now + _MAX_SIGNING_LEAD_S)
        )
        await self.store_value(name, value)
        return value

    async def store_value(self, name: str, value: int) -> None:
        await self._write(entries.store_value(name, value))

    async def read_value(self, name: str) -> int:
        """Return the value that `store_value` stored under `name`, or 0."""
        return await self._read(lambda connection: entries.read_value(connection, name))

    async def record_standing(self, reputation: int, capacity: int) -> None:
        """Store the provider's reputation and granted capacity in this hour."""
        await self._write(history.store_standing(reputation, capacity, self._unix_clock()))

    async def _write(self, *statements: Statement) -> int:
        """Run the statements in the next commit. Return the number of rows that the last statement changed."""
        write = _PendingWrite(statements)
        self._pending.append(write)
        try:
            while not write.is_done:
                async with self._lock:
                    if not write.is_done:
                        await self._commit(
                            [write] if write.commits_alone else [one for one in self._pending if not one.commits_alone]
                        )
        finally:
            if write in self._pending:  # cancelled, or its statements are wrong
                self._pending.remove(write)
        return write.rows_changed

    async def _commit(self, batch: list[_PendingWrite]) -> None:
        try:
            # Shield the commit: after a cancellation, it would be unknown whether the thread committed.
            with trio.CancelScope(shield=True):
                changed = await trio.to_thread.run_sync(_commit, self._connection, [one.statements for one in batch])
        except Exception as error:
            if _is_disk_failure(error):
                await self._wait_for_disk(error)
            elif len(batch) == 1:
                raise
            else:  # one of the writes has a wrong statement, so commit each write alone
                for one in batch:
                    one.commits_alone = True
        else:
            self.is_working = True
            for one, rows in zip(batch, changed, strict=True):
                one.is_done, one.rows_changed = True, rows
                if one in self._pending:  # otherwise its writer was cancelled
                    self._pending.remove(one)

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        async with self._lock:
            return await self._retry(lambda: read(self._connection))

    async def _retry(self, operation: Callable[[], T]) -> T:
        """Run `operation` in a thread, and retry while the disk fails."""
        has_failed = False
        while True:
            try:
                result = await trio.to_thread.run_sync(operation)
            except Exception as error:
                if not _is_disk_failure(error):
                    raise
                has_failed = True
                await self._wait_for_disk(error)
            else:
                if has_failed:
                    self.is_working = not self._pending  # a pending write reports its own outcome
                return result

    async def _wait_for_disk(self, error: Exception) -> None:
        if self.is_working:
            log.error("journal unavailable", reason=str(error))
        self.is_working = False
        await trio.sleep(_RETRY_PAUSE_S)


def _is_disk_failure(error: Exception) -> bool:
    """Return True for a failing disk or a damaged database, and False for a bug.

    sqlite3 reports a damaged file as `DatabaseError` itself, and wrong statements and values as its subclasses.
    """
    return isinstance(error, OSError | sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _commit(connection: sqlite3.Connection, writes: list[tuple[Statement, ...]]) -> list[int]:
    """Run the writes in one transaction. Return, for each write, how many rows its last statement changed."""
    connection.execute("begin immediate")
    try:
        changed = [[connection.execute(sql, values).rowcount for sql, values in write][-1] for write in writes]
        connection.execute("commit")
        return changed
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


@asynccontextmanager
async def open_journal(directory: Path, unix_clock: Callable[[], float] = time.time) -> AsyncIterator[Journal]:
    """Lock the state directory and open its journal. The lock prevents two daemons with one wallet."""
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
            journal = Journal(connection, ResultFiles(directory / "results"), unix_clock)
            await journal.clean_up()
            yield journal
        finally:
            connection.close()
    finally:
        os.close(lock)


def is_daemon_running(directory: Path) -> bool:
    """Return True if a daemon runs on this state directory. Calling this function creates no files."""
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
