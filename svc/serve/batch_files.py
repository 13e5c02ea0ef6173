"""Files of a batch as long as it goes on: its input, held whatever becomes of the file that it was made from, and its
results, written line by line on the disk.
"""

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

from svc.serve.files import LocalFiles, no_such_file
from svc.serve.problems import storing

_NAMES: Final = {True: "output", False: "error"}


@attrs.frozen
class BatchInputs:
    files: LocalFiles

    def _path(self, batch_id: str) -> Path:
        return self.files.path(batch_id)

    async def hold(self, file_id: str, batch_id: str) -> None:
        """Raises Problem where the file is gone, StorageFailed where the disk is full."""
        source, held = self.files.path(file_id), self._path(batch_id)

        def copy() -> None:
            try:
                os.link(source, held)
            except FileNotFoundError:
                raise no_such_file(file_id) from None
            except OSError:  # a disk without links
                shutil.copyfile(source, held)

        with storing():
            await to_thread.run_sync(copy)

    async def read(self, key: str, file_id: str, batch_id: str) -> bytes:
        try:
            return await anyio.Path(self._path(batch_id)).read_bytes()
        except FileNotFoundError:  # of a batch that an older release made
            return await self.files.read(key, file_id)

    async def release(self, batch_id: str) -> None:
        with storing():
            await anyio.Path(self._path(batch_id)).unlink(missing_ok=True)


class BatchResultFiles:
    """The output and error file of a batch as they are written, line after line."""

    def __init__(self, folder: Path, batch_id: str) -> None:
        self._paths = {good: folder / f".{batch_id}.{name}.partial" for good, name in _NAMES.items()}
        self._files: dict[bool, IO[bytes]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._open.close()
        finally:
            for path in self._paths.values():
                path.unlink(missing_ok=True)

    def add(self, line: Mapping[str, Any], good: bool) -> None:
        if good not in self._files:
            self._paths[good].touch(mode=0o600)
            self._files[good] = self._open.enter_context(self._paths[good].open("wb"))
        self._files[good].write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def finished(self) -> Iterator[tuple[str, Path]]:
        """The files that have lines, to be taken over."""
        self._open.close()
        for good, name in _NAMES.items():
            if good in self._files:
                yield name, self._paths[good]
