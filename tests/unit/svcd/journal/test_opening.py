"""Opening a journal: which files stay open, and which process may use its lock."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from common.daemon.process import Fatal
from svcd.journal import entries
from svcd.journal.journal import JOURNAL_FILE, _commit, is_daemon_running, open_journal


def open_files(below: Path) -> list[str]:
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return [target for link in links if link.is_symlink() and (target := os.readlink(link)).startswith(str(below))]


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
