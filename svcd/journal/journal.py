"""Journal of the provider's commitments, written before they are acted on.

A write returns when it is on the disk. Writers that come while a commit is under way share the next one, so that two
hundred jobs at once do not wait for two hundred syncs. If the disk refuses a read or a write, it is retried for as long
as the caller waits: acting without the entry is what the journal is there to prevent.
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
from svcd.journal.result_files import LONGEST_ROW, ResultFiles

log = structlog.get_logger(__name__)

T = TypeVar("T")

_REMEMBERED: Final = 3 * 86_400  # no order lives longer than two days: one until its claim, one until its SLA
_TIDIED_EVERY: Final = 3600.0
_RETRY_S: Final = 1.0
_FURTHEST: Final = 3540  # seconds ahead that a time is signed: the chain takes an hour, by its own clock


@attrs.define(slots=True, eq=False)
class _PendingWrite:
    statement: Statement
    done: bool = False
    rows: int = 0  # that it changed


class Journal:
    """`wall` gives Unix seconds."""

    def __init__(self, connection: sqlite3.Connection, files: ResultFiles, wall: Callable[[], float]) -> None:
        self._connection = connection
        self._files = files
        self._wall = wall
        self._turn = trio.Lock()  # of whoever uses the connection: it is not to be shared
        self._pending: list[_PendingWrite] = []
        self.works = True  # False while the disk refuses reads or writes

    # --- jobs ---------------------------------------------------------------------------------------------

    async def claiming(self, job: Job, model: str) -> bool:
        """False for a job that was worked on before: its entry, and its result, are left as they are."""
        return await self._write(entries.claiming(job, model, self._wall())) > 0

    async def adopted(self, job: Job, model: str) -> None:
        await self._write(entries.adopted(job, model, self._wall()))

    async def claimed(self, job_id: bytes) -> None:
        await self._write(entries.claimed(job_id, self._wall()))

    async def sealed(self, job_id: bytes, completion_tok: int, result: bytes) -> None:
        inline = result if len(result) <= LONGEST_ROW else None
        if inline is None:
            await self._retried(lambda: self._files.store(job_id, result))
        await self._write(entries.sealed(job_id, completion_tok, inline, len(result), self._wall()))

    async def uploaded(self, job_id: bytes, cid: str) -> None:
        await self._write(entries.uploaded(job_id, cid, self._wall()))

    async def failing(self, job_id: bytes, reason: str) -> None:
        await self._write(entries.failing(job_id, reason, self._wall()))

    async def ended(self, job_id: bytes, state: JournalState, reason: str | None = None) -> None:
        await self._write(entries.ended(job_id, state, reason, self._wall()))
        if self._files.has(job_id):
            await self._retried(lambda: self._files.remove(job_id))

    async def live(self) -> list[JobEntry]:
        return await self._read(entries.read_live)

    async def job(self, job_id: bytes) -> Job | None:
        """The job as it was when it was claimed last. None for a job that was never claimed, or is forgotten."""
        return await self._read(lambda connection: entries.read_job(connection, job_id))

    async def state(self, job_id: bytes) -> JournalState | None:
        """None for a job of which nothing is remembered."""
        return await self._read(lambda connection: entries.read_state(connection, job_id))

    async def unknown(self, job_ids: Collection[bytes]) -> set[bytes]:
        """Those that, as far as is remembered, were never ours."""
        return await self._read(lambda connection: entries.read_unknown(connection, job_ids))

    async def owner(self, owner: bytes) -> OwnerRecord:
        return await self._read(lambda connection: entries.read_owner(connection, owner))

    async def failed_before(self) -> set[bytes]:
        return await self._read(entries.read_failed)

    async def open_result(self, job_id: bytes) -> bytes | BinaryIO:
        """The sealed bytes of a job: themselves, or the open file that holds them."""
        inline = await self._read(lambda connection: entries.read_result(connection, job_id))
        return inline if inline is not None else await self._retried(lambda: self._files.open(job_id))

    async def forget(self) -> None:
        """What ended too long ago to play any part."""
        await self._write(entries.forgotten(self._wall() - _REMEMBERED))

    async def keep_small(self) -> NoReturn:
        while True:
            await trio.sleep(_TIDIED_EVERY)
            await self.forget()

    async def tidy(self) -> None:
        """Before anything is at work: result files that belong to no job that is held are removed, too."""
        await self.forget()
        live = [entry.job.job_id for entry in await self.live()]
        await self._retried(lambda: self._files.remove_all_but(live))

    async def belongs_to(self, home: Home) -> None:
        """Fatal for the journal of another wallet or market: its jobs would be looked for where they never were, and
        given up with their results."""
        known = await self._read(entries.read_home)
        if known is None:
            await self._write(entries.insert_home(home))
        elif known != home:
            raise Fatal(f"the state directory is that of {known}; this is {home}: name another state_directory")

    # --- numbers that only grow ---------------------------------------------------------------------------

    async def next_time(self, name: str, *, skip: int = 0) -> int:
        """A Unix time for signing that is newer than all it gave before, also before a restart; never so far ahead that
        nobody would take it. What it gave while the clock was wrong by more nobody has taken: it starts anew."""
        now = int(self._wall())
        before = await self._read(lambda connection: entries.read_latest(connection, name))
        value = now if before >= now + _FURTHEST else min(max(now, before + 1 + skip), now + _FURTHEST)
        await self.note(name, value)
        return value

    async def note(self, name: str, value: int) -> None:
        await self._write(entries.latest(name, value))

    async def noted(self, name: str) -> int:
        """0 when nothing was noted."""
        return await self._read(lambda connection: entries.read_latest(connection, name))

    # --- the thread ---------------------------------------------------------------------------------------

    async def _write(self, statement: Statement) -> int:
        """The rows that it changed."""
        mine = _PendingWrite(statement)
        self._pending.append(mine)
        try:
            while not mine.done:
                async with self._turn:
                    if not mine.done:
                        await self._commit()
        finally:
            if mine in self._pending:  # cancelled before anybody wrote it
                self._pending.remove(mine)
        return mine.rows

    async def _commit(self) -> None:
        batch, self._pending = self._pending, []
        try:
            # Not to be left half-way: what the thread commits must be known to be committed.
            with trio.CancelScope(shield=True):
                changed = await trio.to_thread.run_sync(_commit, self._connection, [one.statement for one in batch])
        except Exception as error:
            self._pending = batch + self._pending
            if not _is_disk_failure(error):
                raise  # one statement failed: each writer retries its own
            await self._wait_for_disk(error)
        else:
            self.works = True
            for one, rows in zip(batch, changed, strict=True):
                one.done, one.rows = True, rows

    async def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        async with self._turn:
            return await self._retried(lambda: read(self._connection))

    async def _retried(self, act: Callable[[], T]) -> T:
        """Run `act` in a thread, again and again while the disk refuses it."""
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
    """True for a full, broken or locked disk, and for a damaged database. False for a mistake of the program.

    `DatabaseError` itself reports a damaged file. Its other subclasses report wrong statements and values.
    """
    return isinstance(error, OSError | sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _commit(connection: sqlite3.Connection, statements: list[Statement]) -> list[int]:
    """The rows that each changed."""
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
    """Holds the state directory for this process alone: two daemons on one wallet would work against each other."""
    try:
        for private in (directory, directory / "results"):
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(PermissionError):  # a volume of another user's, with access by group: its files are private
                private.chmod(0o700)
        lock = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as broken:
        raise Fatal(f"the state directory {directory} cannot be used: {broken.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Fatal(f"another svcd runs on the state directory {directory}") from None
        connection = entries.open_database(directory / JOURNAL_FILE)
        try:
            journal = Journal(connection, ResultFiles(directory / "results"), wall)
            await journal.tidy()
            yield journal
        finally:
            connection.close()
    finally:
        os.close(lock)


JOURNAL_FILE: Final = "journal.sqlite3"
_LOCK_FILE: Final = "lock"


def is_in_use(directory: Path) -> bool:
    """Whether a daemon runs on this state directory. Nothing is made, and nothing kept."""
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
