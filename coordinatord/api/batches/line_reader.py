"""Reads the lines of an input file, a few hundred at a time.

The reader keeps one chunk of the file in memory, or one line if the line is longer than a chunk. It skips a line that
is too long to be a submission, without keeping the line in memory.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
import attrs

from coordinatord.api.files.inspection import BLANK_BYTES
from coordinatord.base.errors import Retryable

CHUNK_BYTES: Final = 1 << 20
MAX_LINES_PER_READ: Final = 512
MAX_LINE_BYTES: Final = 22 << 20  # fits a submission with the largest inline container
READ_TIMEOUT_S: Final = 90.0  # per chunk. Other batches of this process wait until the read ends.

ReadRange = Callable[[int, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Reads the bytes from `first` to `last` inclusive, piece by piece."""


@attrs.frozen(slots=True)
class InputLine:
    """Line of the file. `number` counts from 1 and includes blank lines. `text` is None for a longer line than
    MAX_LINE_BYTES."""

    number: int
    text: bytes | None = attrs.field(repr=False)


@attrs.frozen(slots=True)
class FileCursor:
    """Position in the file. The `line_count` lines before `offset` are done."""

    offset: int
    line_count: int


@attrs.frozen(slots=True)
class LinePortion:
    """Non-blank lines, and the cursor after them."""

    lines: tuple[InputLine, ...]
    next_cursor: FileCursor


@attrs.frozen(slots=True)
class LineReader:
    read_range: ReadRange
    file_bytes: int
    chunk_bytes: int = CHUNK_BYTES
    max_lines: int = MAX_LINES_PER_READ
    max_line_bytes: int = MAX_LINE_BYTES
    timeout_s: float = READ_TIMEOUT_S  # per chunk

    async def read_lines(self, start: FileCursor) -> LinePortion:
        """Read the next lines, and return the lines with text. Read at least one line unless the file has ended.
        Raise Retryable if the store returns too few or too many bytes, or returns them too slowly."""
        buffer = bytearray()
        while start.offset + len(buffer) < self.file_bytes:
            await self._read_chunk(buffer, start.offset)
            at_end = start.offset + len(buffer) == self.file_bytes
            if at_end or b"\n" in buffer:
                return self._split_lines(bytes(buffer), start, at_end=at_end)
            if len(buffer) > self.max_line_bytes:
                return await self._skip_long_line(start, len(buffer))
        return LinePortion((), start)

    async def _read_chunk(self, buffer: bytearray, offset: int) -> None:
        """Append the next chunk to `buffer`. `offset` is the position of the buffer in the file."""
        first = offset + len(buffer)
        # Double the request each time, so that a long line takes few requests.
        last = min(first + max(self.chunk_bytes, len(buffer)), self.file_bytes) - 1
        end = len(buffer) + last + 1 - first
        try:
            with anyio.fail_after(self.timeout_s):
                async with self.read_range(first, last) as pieces:
                    async for piece in pieces:
                        buffer += piece
                        if len(buffer) > end:
                            raise _store_unavailable_error(
                                "the object store sent more of the input file than was requested"
                            )
        except TimeoutError:
            raise _store_unavailable_error(
                f"the object store sent the input file too slowly: a read took more than {self.timeout_s:g} s"
            ) from None
        if len(buffer) != end:
            raise _store_unavailable_error("the object store sent less of the input file than was requested")

    def _split_lines(self, buffer: bytes, start: FileCursor, *, at_end: bool) -> LinePortion:
        """Split off whole lines. The last line of the file may lack its newline."""
        lines: list[InputLine] = []
        offset, number = 0, start.line_count
        while offset < len(buffer) and len(lines) < self.max_lines:
            newline = buffer.find(b"\n", offset)
            if newline < 0 and not at_end:
                break
            text = buffer[offset:] if newline < 0 else buffer[offset:newline]
            offset = len(buffer) if newline < 0 else newline + 1
            number += 1
            if text.strip(BLANK_BYTES):
                lines.append(InputLine(number, text if len(text) <= self.max_line_bytes else None))
        return LinePortion(tuple(lines), FileCursor(start.offset + offset, number))

    async def _skip_long_line(self, start: FileCursor, searched_bytes: int) -> LinePortion:
        """Skip the rest of a line that has no newline in its first `searched_bytes` bytes."""
        offset = start.offset + searched_bytes
        while offset < self.file_bytes:
            buffer = bytearray()
            await self._read_chunk(buffer, offset)
            newline = buffer.find(b"\n")
            offset += len(buffer) if newline < 0 else newline + 1
            if newline >= 0:
                break
        return LinePortion((InputLine(start.line_count + 1, None),), FileCursor(offset, start.line_count + 1))


def _store_unavailable_error(message: str) -> Retryable:
    return Retryable("pinner_unavailable", message, "store_unavailable")
