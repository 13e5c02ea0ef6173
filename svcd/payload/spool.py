"""A payload on its way in: in memory while it is small, in a file that nobody else can open once it is not."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import trio

_IN_MEMORY: Final = 2 * 2**20
_PIECE: Final = 65_536  # what the streaming openers are fastest with


class Spool:
    """`limit`: more bytes than this are refused by `write`."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self.length = 0

    async def write(self, piece: bytes) -> bool:
        """False when the payload has become longer than allowed."""
        self.length += len(piece)
        if self.length > self._limit:
            return False
        if self._file is None and len(self._memory) + len(piece) > _IN_MEMORY:
            await trio.to_thread.run_sync(self._move_to_file)
        if self._file is None:
            self._memory += piece
        else:
            await trio.to_thread.run_sync(self._file.write, piece)
        return True

    def clear(self) -> None:
        """For another attempt."""
        self.length = 0
        self._memory.clear()
        if self._file is not None:
            with suppress(OSError):  # a full disk: what it could not take is given up here
                self._file.close()
            self._file = None

    @property
    def is_small(self) -> bool:
        """Small enough to be worked on without a thread."""
        return self._file is None

    def pieces(self) -> Iterator[bytes]:
        """From the start; reads a file, so large ones are for a thread."""
        if self._file is None:
            for at in range(0, len(self._memory), _PIECE):
                yield bytes(self._memory[at : at + _PIECE])
            return
        self._file.seek(0)
        while piece := self._file.read(_PIECE):
            yield piece

    def _move_to_file(self) -> None:
        # Unlinked from the start: a crash leaves nothing behind.
        self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - lives as long as the spool
        self._file.write(self._memory)
        self._memory = bytearray()
