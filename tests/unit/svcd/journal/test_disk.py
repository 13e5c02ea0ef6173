"""A journal on a disk: which process may open it, and what happens when the disk fails."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from common.daemon.process import Fatal
from svcd.journal import entries
from svcd.journal.journal import JOURNAL_FILE, Journal, _commit, is_daemon_running, open_journal
from svcd.journal.result_files import MAX_ROW_BYTES, ResultFiles
from svcd.stages.health import DaemonHealth


def open_files(below: Path) -> list[str]:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith(str(below))]


@pytest.mark.trio
async def test_closed_journal_keeps_no_file_open(tmp_path: Path) -> None:
    async with open_journal(tmp_path, lambda: 0.0):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "results").stat().st_mode) == 0o700
        held = open_files(tmp_path)
        assert is_daemon_running(tmp_path)
        assert open_files(tmp_path) == held
    assert open_files(tmp_path) == []
    assert not is_daemon_running(tmp_path)
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("older", [False, True], ids=["new", "left by an older svcd"])
@pytest.mark.trio
async def test_state_directory_is_for_its_user_alone(older: bool, tmp_path: Path) -> None:
    state = tmp_path / "state"
    if older:
        (state / "results").mkdir(mode=0o755, parents=True)
        with closing(sqlite3.connect(state / JOURNAL_FILE)) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute("create table unrelated (n)")
            assert stat.S_IMODE((state / f"{JOURNAL_FILE}-wal").stat().st_mode) == 0o644
    mask = os.umask(0o022)
    try:
        async with open_journal(state, lambda: 0.0) as journal:
            await journal.store_value("name", 1)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [state, *state.iterdir()]}
    finally:
        os.umask(mask)
    files = [f"{JOURNAL_FILE}{suffix}" for suffix in ("", "-wal", "-shm")]
    assert modes == {"state": 0o700, "results": 0o700, "lock": 0o600, **dict.fromkeys(files, 0o600)}


def test_commit_is_durable_and_does_not_block_readers(tmp_path: Path) -> None:
    connection = entries.open_database(tmp_path / JOURNAL_FILE)
    told = [connection.execute(f"pragma {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert told == ["wal", 2]  # synchronous=full
    connection.close()


def test_foreign_or_newer_file_is_refused_and_closed(tmp_path: Path) -> None:
    other, newer = tmp_path / "other", tmp_path / "newer"
    other.write_bytes(b"something else " * 100)
    connection = entries.open_database(newer)
    (version,) = connection.execute("pragma user_version").fetchone()
    connection.execute(f"pragma user_version = {version + 1}")
    connection.close()
    assert version > 0
    with pytest.raises(Fatal, match="cannot be used") as unreadable:
        entries.open_database(other)
    with pytest.raises(Fatal, match=f"its format is {version + 1}, expected at most {version}") as unknown:
        entries.open_database(newer)
    assert unreadable.tb is not None  # keeps the frames and their locals alive
    assert unknown.tb is not None
    assert open_files(tmp_path) == []


def test_jobs_are_counted_by_state_and_reason(tmp_path: Path) -> None:
    connection = entries.open_database(tmp_path / JOURNAL_FILE)
    insert = (
        "insert into jobs (job_id, model, row, state, claim_sent, updated, reason) values (?, 'm', '{}', ?, 0, 0, ?)"
    )
    for number, ended in enumerate([("failed", "why"), ("failed", "why"), ("settled", None)]):
        connection.execute(insert, (bytes([number]) * 32, *ended))
    assert entries.read_job_counts(connection) == {("failed", "why"): 2, ("settled", None): 1}
    connection.close()


def test_failing_statement_rolls_back_the_commit() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("create table t (n integer not null)")
    with pytest.raises(sqlite3.IntegrityError):
        _commit(connection, [(("insert into t values (?)", (1,)),), (("insert into t values (?)", (None,)),)])
    assert not connection.in_transaction
    assert connection.execute("select count(*) from t").fetchone() == (0,)
    connection.close()


async def test_disk_that_is_full_from_the_beginning_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with (
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as ours,
        closing(sqlite3.connect(path, isolation_level=None)) as full,
    ):
        ours.execute("create table latest (name text primary key, value integer not null)")
        journal = Journal(ours, ResultFiles(tmp_path), lambda: 0.0)
        assert journal.is_working
        full.execute("begin immediate")  # blocks writes, like a full disk
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.store_value, "name", 1)
            await trio.sleep(3.5)
            assert not journal.is_working
            full.execute("rollback")
        assert journal.is_working
        assert await journal.read_value("name") == 1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin exclusive")
        yield
        other.execute("rollback")


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    content = path.read_bytes()
    path.write_bytes(b"x" * len(content))
    yield
    path.write_bytes(content)


@pytest.mark.parametrize("refusing", [locked, damaged])
async def test_read_that_the_disk_refuses_is_retried(
    refusing: Callable[[Path], AbstractContextManager[None]], tmp_path: Path
) -> None:
    path = tmp_path / "journal.sqlite3"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as ours:
        ours.execute("create table latest (name text primary key, value integer not null)")
        ours.execute("insert into latest values ('name', 7)")
        journal = Journal(ours, ResultFiles(tmp_path), lambda: 0.0)
        health = DaemonHealth(journal)
        read: list[int] = []

        async def reader() -> None:
            read.append(await journal.read_value("name"))

        async with trio.open_nursery() as nursery:
            with refusing(path):
                nursery.start_soon(reader)
                await trio.sleep(3.5)
                assert not journal.is_working
                assert health.problem == "the journal cannot be read or written"
                assert read == []
        assert read == [7]
        assert journal.is_working


async def test_read_that_is_wrong_itself_is_not_retried(tmp_path: Path) -> None:
    async with open_journal(tmp_path, lambda: 0.0) as journal:
        with pytest.raises(sqlite3.ProgrammingError):
            await journal.read_value(object())  # type: ignore[arg-type]
        assert journal.is_working


async def test_result_file_that_is_missing_is_not_waited_for(tmp_path: Path) -> None:
    async with open_journal(tmp_path, lambda: 0.0) as journal:
        with pytest.raises(LookupError, match="result file missing"):
            await journal.open_result(b"\x0a" * 32)
        assert journal.is_working


@attrs.define
class FullFiles:
    """Files that can be written from the third attempt on."""

    at: list[float] = attrs.field(factory=list)

    def store(self, job_id: bytes, result: bytes) -> None:
        self.at.append(trio.current_time())
        if len(self.at) < 3:
            raise OSError("no space left on device")


async def test_result_file_without_room_is_retried_every_second(tmp_path: Path) -> None:
    full: Any = FullFiles()
    async with open_journal(tmp_path, lambda: 0.0) as journal:
        journal._files = full
        await journal.record_sealed(b"\x0a" * 32, 5, b"x" * (MAX_ROW_BYTES + 1))
    began = full.at[0]
    assert [when - began for when in full.at] == [0.0, 1.0, 2.0]
    assert journal.is_working
