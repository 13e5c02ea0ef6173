"""A provider's state directory that loses unsynced writes.

A killed process loses its memory but no writes. A power cut drops writes that no fsync covered, each by chance of the
seed: unsynced bytes of a file, and names that changed since their folder was synced. SQLite is trusted: with
`synchronous = full` each commit is on disk when it returns. With less, the log ends anywhere after a power cut (its
checksums show where). SQLite's other files are not changed.
"""

import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

from svcd.journal.journal import JOURNAL_FILE

RESULTS: Final = "results"
_SYNCHRONOUS_FULL: Final = 2  # value of the pragma
_SHM: Final = Path("/dev/shm")  # noqa: S108 - a disk that costs no time where there is one


@contextmanager
def empty_folder() -> Iterator[Path]:
    """Make an empty folder for the disk of one run."""
    with tempfile.TemporaryDirectory(prefix="simulated-", dir=_SHM if _SHM.is_dir() else None) as folder:
        yield Path(folder)


class Disk:
    """Folders of one provider's lives below `root`. `directory` is the current life's."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self._root, self._chance = root, chance
        self._lives = 0
        self.directory = root / "life-0"
        self.directory.mkdir()
        self._synced: dict[int, bytes] = {}  # content by inode
        self._names: dict[str, int] = {}  # in the results folder, when it was last synced
        self._keeps_commits = True

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Track fsync calls inside the block."""
        with patch.object(os, "fsync", self._fsync):
            yield

    def opened(self, connection: sqlite3.Connection) -> None:
        """Register the current life's journal connection."""
        (synchronous,) = connection.execute("pragma synchronous").fetchone()
        self._keeps_commits = synchronous >= _SYNCHRONOUS_FULL

    def survives(self, power_cut: bool) -> None:
        """End this life. The next life does not see its later writes."""
        former, results = self.directory, self._after_power_cut() if power_cut else self._results()
        self._lives += 1
        self.directory = self._root / f"life-{self._lives}"
        (self.directory / RESULTS).mkdir(parents=True)
        for suffix in ("", "-wal"):
            if (former / f"{JOURNAL_FILE}{suffix}").exists():
                shutil.copyfile(former / f"{JOURNAL_FILE}{suffix}", self.directory / f"{JOURNAL_FILE}{suffix}")
        if power_cut and not self._keeps_commits:
            log = self.directory / f"{JOURNAL_FILE}-wal"
            if log.exists():
                os.truncate(log, self._chance.randint(0, log.stat().st_size))
        self._synced, self._names = {}, {}
        for name, content in results.items():
            path = self.directory / RESULTS / name
            path.write_bytes(content)
            self._synced[path.stat().st_ino] = content
            self._names[name] = path.stat().st_ino

    def journal(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """Return rows committed to the journal. Empty if it does not exist yet."""
        path = self.directory / JOURNAL_FILE
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(sql, values).fetchall()

    def result(self, job_id: bytes) -> bytes | None:
        path = self.directory / RESULTS / job_id.hex()
        return path.read_bytes() if path.exists() else None

    def _fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path.is_dir():
            self._names = {one.name: one.stat().st_ino for one in path.iterdir()}
        else:
            self._synced[os.fstat(descriptor).st_ino] = path.read_bytes()

    def _results(self) -> dict[str, bytes]:
        folder = self.directory / RESULTS
        return {one.name: one.read_bytes() for one in sorted(folder.iterdir())} if folder.exists() else {}

    def _after_power_cut(self) -> dict[str, bytes]:
        folder = self.directory / RESULTS
        now = {one.name: one.stat().st_ino for one in folder.iterdir()} if folder.exists() else {}
        written = {inode: (folder / name).read_bytes() for name, inode in now.items()}
        found: dict[str, bytes] = {}
        for name in sorted(now.keys() | self._names.keys()):
            inode = self._chance.choice((now.get(name), self._names.get(name)))
            if inode is not None:
                found[name] = self._content(inode, written)
        return found

    def _content(self, inode: int, written: dict[int, bytes]) -> bytes:
        synced, latest = self._synced.get(inode), written.get(inode)
        if latest is None or latest == synced:
            return synced or b""
        cut = latest[: self._chance.randint(0, len(latest))]
        return self._chance.choice((cut, synced)) if synced is not None else cut
