"""Store large sealed results in files, which are synced to disk before the journal's database refers to them."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

import attrs

# A smaller result is stored in the database, which is cheaper than a file with two fsyncs.
MAX_ROW_BYTES: Final = 256 * 1024


@attrs.frozen(slots=True)
class ResultFiles:
    directory: Path
    _stored: set[bytes] = attrs.field(factory=set)  # jobs with a file

    def store(self, job_id: bytes, result: bytes) -> None:
        self._stored.add(job_id)
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
        return job_id in self._stored

    def remove(self, job_id: bytes) -> None:
        self._path(job_id).unlink(missing_ok=True)
        self._stored.discard(job_id)

    def delete_except(self, live_job_ids: Iterable[bytes]) -> None:
        """Delete the files of jobs that are not live. A crash may leave such files."""
        self._stored.update(live_job_ids)
        wanted = {self._path(job_id) for job_id in self._stored}
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
