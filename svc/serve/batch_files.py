"""Files of a running batch: a copy of the input, and the results, which are written line by line."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import anyio
import attrs
from anyio import to_thread

from svc.serve.files import LocalFiles, file_not_found
from svc.serve.problems import convert_storage_errors

_FILE_NAME_BY_SUCCESS: Final = {True: "output", False: "error"}  # for lines that succeeded, and for lines that failed


@attrs.frozen
class BatchInputs:
    """Copies of the input files. A copy is kept until its batch ends."""

    files: LocalFiles

    def _copy_path(self, batch_id: str) -> Path:
        return self.files.path(batch_id)

    async def copy_input(self, file_id: str, batch_id: str) -> None:
        """Copy an input file. Raises Problem if the file is missing, and StorageFailed if the disk is full."""
        source, copy_path = self.files.path(file_id), self._copy_path(batch_id)

        def link_or_copy() -> None:
            try:
                os.link(source, copy_path)
            except FileNotFoundError:
                raise file_not_found(file_id) from None
            except OSError:  # a file system without hard links
                shutil.copyfile(source, copy_path)

        with convert_storage_errors():
            await to_thread.run_sync(link_or_copy)

    async def read_input(self, key: str, file_id: str, batch_id: str) -> bytes:
        try:
            return await anyio.Path(self._copy_path(batch_id)).read_bytes()
        except FileNotFoundError:  # the batch has not begun, or an older release began it without a copy
            return await self.files.read(key, file_id)

    async def delete_input(self, batch_id: str) -> None:
        with convert_storage_errors():
            await anyio.Path(self._copy_path(batch_id)).unlink(missing_ok=True)


class BatchResultFiles:
    """Writes the output file and the error file of a batch."""

    def __init__(self, folder: Path, batch_id: str) -> None:
        self._paths = {
            succeeded: folder / f".{batch_id}.{name}.partial" for succeeded, name in _FILE_NAME_BY_SUCCESS.items()
        }
        self._files: dict[bool, IO[bytes]] = {}
        self._exit_stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._exit_stack.close()
        finally:
            for path in self._paths.values():
                path.unlink(missing_ok=True)

    def write_line(self, line: Mapping[str, Any], succeeded: bool) -> None:
        if succeeded not in self._files:
            self._paths[succeeded].touch(mode=0o600)
            self._files[succeeded] = self._exit_stack.enter_context(self._paths[succeeded].open("wb"))
        self._files[succeeded].write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def close_files(self) -> Iterator[tuple[str, Path]]:
        """Close the files, and yield the name and path of each file with lines.

        Files that the caller does not move are deleted at exit.
        """
        self._exit_stack.close()
        for succeeded, name in _FILE_NAME_BY_SUCCESS.items():
            if succeeded in self._files:
                yield name, self._paths[succeeded]
