"""Reads the lines of an input file, a few hundred at a time.

The reader keeps one window of the file in memory, or one line if the line is longer than a window. It skips a line that
is too long to be a submission, without keeping the line in memory.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
import attrs

from coordinatord.api.files.inspection import BLANK_BYTES
from coordinatord.base.errors import Retryable

WINDOW_BYTES: Final = 1 << 20
MAX_LINES: Final = 512
MAX_LINE_BYTES: Final = 22 << 20  # fits a submission with the largest inline container
READ_TIMEOUT_S: Final = 90.0  # per window. Other batches of this process wait until the read ends.

ReadRange = Callable[[int, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Reads the bytes from `first` to `last` inclusive, piece by piece."""


@attrs.frozen(slots=True)
class InputLine:
    """Line of the file. `number` counts from 1 and includes blank lines. `text` is None for a longer line than
    MAX_LINE_BYTES."""

    number: int
    text: bytes | None = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Cursor:
    """Position in the file. The `lines` lines before `offset` are done."""

    offset: int
    lines: int


@attrs.frozen(slots=True)
class LinePortion:
    """Non-blank lines, and the cursor after them."""

    lines: tuple[InputLine, ...]
    end: Cursor


@attrs.frozen(slots=True)
class LineReader:
    read: ReadRange
    size: int  # bytes of the file
    window: int = WINDOW_BYTES
    max_lines: int = MAX_LINES
    max_line_bytes: int = MAX_LINE_BYTES
    timeout_s: float = READ_TIMEOUT_S  # per window

    async def read_lines(self, start: Cursor) -> LinePortion:
        """Read the next lines, and return all that are not blank. Read at least one line unless the file has ended.
        Raise Retryable if the store returns too few or too many bytes, or returns them too slowly."""
        held = bytearray()
        while start.offset + len(held) < self.size:
            await self._add_window(held, start.offset)
            at_end = start.offset + len(held) == self.size
            if at_end or b"\n" in held:
                return self._split_lines(bytes(held), start, at_end=at_end)
            if len(held) > self.max_line_bytes:
                return await self._skip_long_line(start, len(held))
        return LinePortion((), start)

    async def _add_window(self, held: bytearray, offset: int) -> None:
        first = offset + len(held)
        # Double the request each time, so that a long line takes few requests.
        last = min(first + max(self.window, len(held)), self.size) - 1
        end = len(held) + last + 1 - first
        try:
            with anyio.fail_after(self.timeout_s):
                async with self.read(first, last) as pieces:
                    async for piece in pieces:
                        held += piece
                        if len(held) > end:
                            raise _store_unavailable("the object store sent more of the input file than was requested")
        except TimeoutError:
            raise _store_unavailable("the object store sends the input file too slowly") from None
        if len(held) != end:
            raise _store_unavailable("the object store cut the input file short")

    def _split_lines(self, held: bytes, start: Cursor, *, at_end: bool) -> LinePortion:
        """Split off whole lines. The last line of the file may lack its newline."""
        lines: list[InputLine] = []
        offset, number = 0, start.lines
        while offset < len(held) and len(lines) < self.max_lines:
            newline = held.find(b"\n", offset)
            if newline < 0 and not at_end:
                break
            text = held[offset:] if newline < 0 else held[offset:newline]
            offset = len(held) if newline < 0 else newline + 1
            number += 1
            if text.strip(BLANK_BYTES):
                lines.append(InputLine(number, text if len(text) <= self.max_line_bytes else None))
        return LinePortion(tuple(lines), Cursor(start.offset + offset, number))

    async def _skip_long_line(self, start: Cursor, known: int) -> LinePortion:
        """Skip the rest of a line that has no newline in its first `known` bytes."""
        offset = start.offset + known
        while offset < self.size:
            ahead = bytearray()
            await self._add_window(ahead, offset)
            newline = ahead.find(b"\n")
            offset += len(ahead) if newline < 0 else newline + 1
            if newline >= 0:
                break
        return LinePortion((InputLine(start.lines + 1, None),), Cursor(offset, start.lines + 1))


def _store_unavailable(message: str) -> Retryable:
    return Retryable("pinner_unavailable", message, "store_unavailable")
