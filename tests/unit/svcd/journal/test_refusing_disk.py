"""A journal on a failing disk: its first commit, its reads and its files."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from svcd.journal.journal import Journal, open_journal
from svcd.journal.result_files import MAX_ROW_BYTES, ResultFiles
from svcd.stages.health import DaemonHealth


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
