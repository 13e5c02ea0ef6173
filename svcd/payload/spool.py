"""Buffer for an arriving payload: in memory if small, otherwise in an unlinked file."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import trio

from common.framing import SEALED_FRAME_BYTES
from common.sealed_stream import FIRST_PIECE_BYTES

_MAX_MEMORY_BYTES: Final = 2 * 2**20


class Spool:
    """Buffer of at most `max_bytes` bytes."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._memory = bytearray()
        self._file: IO[bytes] | None = None
        self.length = 0

    async def write(self, piece: bytes) -> bool:
        """Append a piece. Return False if the payload exceeds the limit."""
        self.length += len(piece)
        if self.length > self._max_bytes:
            return False
        if self._file is None and len(self._memory) + len(piece) > _MAX_MEMORY_BYTES:
            await trio.to_thread.run_sync(self._move_to_file)
        if self._file is None:
            self._memory += piece
        else:
            await trio.to_thread.run_sync(self._file.write, piece)
        return True

    def clear(self) -> None:
        """Empty the spool for another attempt."""
        self.length = 0
        self._memory.clear()
        if self._file is not None:
            with suppress(OSError):  # closing fails if buffered data does not fit on a full disk
                self._file.close()
            self._file = None

    @property
    def is_small(self) -> bool:
        """Return True if the payload is small enough to process without a thread."""
        return self._file is None

    def pieces(self) -> Iterator[bytes]:
        """Yield the payload's encrypted frames. Call this in a thread if the payload is in a file."""
        if self._file is None:
            yield bytes(self._memory[:FIRST_PIECE_BYTES])
            for at in range(FIRST_PIECE_BYTES, len(self._memory), SEALED_FRAME_BYTES):
                yield bytes(self._memory[at : at + SEALED_FRAME_BYTES])
            return
        self._file.seek(0)
        yield self._file.read(FIRST_PIECE_BYTES)
        while piece := self._file.read(SEALED_FRAME_BYTES):
            yield piece

    def _move_to_file(self) -> None:
        # The file has no name, so a crash leaves nothing behind.
        self._file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - lives as long as the spool
        self._file.write(self._memory)
        self._memory = bytearray()
