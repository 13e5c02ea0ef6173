"""The journal on a disk that refuses: before its first commit, which is made while it is opened, and for its files."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from svcd.journal.journal import LONGEST_ROW, Journal, ResultFiles, open_journal

pytestmark = pytest.mark.trio


async def test_disk_that_is_full_from_the_beginning_is_waited_for(
    autojump_clock: MockClock, inline_threads: None, tmp_path: Path
) -> None:
    path = tmp_path / "journal.sqlite3"
    with (
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as ours,
        closing(sqlite3.connect(path, isolation_level=None)) as full,
    ):
        ours.execute("create table latest (name text primary key, value integer not null)")
        journal = Journal(ours, ResultFiles(tmp_path), lambda: 0.0)
        assert journal.works
        full.execute("begin immediate")  # as little can be written now as on a full disk
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.note, "name", 1)
            await trio.sleep(3.5)
            assert not journal.works
            full.execute("rollback")
        assert journal.works
        assert await journal.noted("name") == 1


@attrs.define
class FullFiles:
    """Files that can be kept from the third attempt on."""

    at: list[float] = attrs.field(factory=list)

    def store(self, job_id: bytes, result: bytes) -> None:
        self.at.append(trio.current_time())
        if len(self.at) < 3:
            raise OSError("no space left on device")


async def test_result_file_that_finds_no_room_is_tried_again_every_second(
    autojump_clock: MockClock, inline_threads: None, tmp_path: Path
) -> None:
    full: Any = FullFiles()
    async with open_journal(tmp_path, lambda: 0.0) as journal:
        journal._files = full
        await journal.sealed(b"\x0a" * 32, 5, b"x" * (LONGEST_ROW + 1))
    began = full.at[0]
    assert [when - began for when in full.at] == [0.0, 1.0, 2.0]
    assert journal.works
