"""The journal before its first commit, which is made while it is opened."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from svcd.journal.journal import Journal, ResultFiles

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
