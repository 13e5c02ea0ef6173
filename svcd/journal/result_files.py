"""Sealed results that are too large for the journal's database: one file each, durable before the database names it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

import attrs

# Below this a result costs less as a row than as a file with two fsyncs.
LONGEST_ROW: Final = 256 * 1024


@attrs.frozen(slots=True)
class ResultFiles:
    directory: Path
    _kept: set[bytes] = attrs.field(factory=set)  # jobs that have one, so that few ends have to go and look

    def store(self, job_id: bytes, result: bytes) -> None:
        self._kept.add(job_id)
        partial = self._path(job_id).with_suffix(".partial")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(result)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path(job_id))
        self._sync_directory()

    def open(self, job_id: bytes) -> BinaryIO:
        try:
            return self._path(job_id).open("rb")
        except FileNotFoundError as missing:
            raise LookupError(f"result file missing: {missing.filename}") from missing

    def has(self, job_id: bytes) -> bool:
        return job_id in self._kept

    def remove(self, job_id: bytes) -> None:
        self._path(job_id).unlink(missing_ok=True)
        self._kept.discard(job_id)

    def remove_all_but(self, job_ids: Iterable[bytes]) -> None:
        """What a crash left between the file and its row, or between an end and its removal."""
        self._kept.update(job_ids)
        wanted = {self._path(job_id) for job_id in self._kept}
        for path in self.directory.iterdir():
            if path not in wanted:
                path.unlink()

    def _path(self, job_id: bytes) -> Path:
        return self.directory / job_id.hex()

    def _sync_directory(self) -> None:
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
