"""Opening a journal: what it leaves open behind itself, and who may use its lock."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from svcd.journal.journal import _commit, is_in_use, open_journal


def open_files(below: Path) -> list[str]:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith(str(below))]


@pytest.mark.trio
async def test_journal_that_is_closed_keeps_no_file_open_and_nor_does_a_look_at_its_lock(tmp_path: Path) -> None:
    async with open_journal(tmp_path, lambda: 0.0):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "results").stat().st_mode) == 0o700
        held = open_files(tmp_path)
        assert is_in_use(tmp_path)
        assert open_files(tmp_path) == held
    assert open_files(tmp_path) == []
    assert not is_in_use(tmp_path)
    assert open_files(tmp_path) == []


def test_commit_of_which_one_statement_fails_leaves_no_transaction_and_nothing_written() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("create table t (n integer not null)")
    with pytest.raises(sqlite3.IntegrityError):
        _commit(connection, [("insert into t values (?)", (1,)), ("insert into t values (?)", (None,))])
    assert not connection.in_transaction
    assert connection.execute("select count(*) from t").fetchone() == (0,)
    connection.close()
