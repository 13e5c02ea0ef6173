"""Sealed results that are too large to lie in the journal's database: a file each, durable before it is named there."""

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

    def store(self, job_id: bytes, result: bytes) -> None:
        partial = self._path(job_id).with_suffix(".partial")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(result)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path(job_id))
        self._sync_directory()

    def open(self, job_id: bytes) -> BinaryIO:
        return self._path(job_id).open("rb")

    def remove(self, job_id: bytes) -> None:
        self._path(job_id).unlink(missing_ok=True)

    def remove_all_but(self, job_ids: Iterable[bytes]) -> None:
        """What a crash left between the file and its row, or between an end and its removal."""
        wanted = {self._path(job_id) for job_id in job_ids}
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
