"""Reads the lines of an input file, some hundreds at a time.

One window of the file is in memory at once, or one line when that is longer than a window. A line longer than any
submission is skipped without keeping it in memory.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import anyio
import attrs

from coordinatord.api.files.inspection import BLANK
from coordinatord.base.errors import Retryable

WINDOW_BYTES: Final = 1 << 20
MAX_LINES: Final = 512
MAX_LINE_BYTES: Final = 22 << 20  # a submission with the largest inline container, and its fields
READ_TIMEOUT_S: Final = 90.0  # the other batches of this process wait for the read

ReadRange = Callable[[int, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Reads the bytes from `first` to `last` inclusive, piece by piece."""


@attrs.frozen(slots=True)
class InputLine:
    """Line of the file. `number` counts from 1 and includes blank lines. `text` is None above MAX_LINE_BYTES."""

    number: int
    text: bytes | None = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Cursor:
    """Place in the file: the bytes before `offset`, which are `lines` lines, are done."""

    offset: int
    lines: int


@attrs.frozen(slots=True)
class LineBatch:
    """Lines that are not blank, and the cursor from which the next ones are read."""

    lines: tuple[InputLine, ...]
    end: Cursor


@attrs.frozen(slots=True)
class LineReader:
    read: ReadRange
    size: int  # of the file
    window: int = WINDOW_BYTES
    max_lines: int = MAX_LINES
    max_line_bytes: int = MAX_LINE_BYTES
    timeout_s: float = READ_TIMEOUT_S  # of one window

    async def read_lines(self, start: Cursor) -> LineBatch:
        """Return the next lines, at least one while any is left. Raise Retryable when the store returns less than the
        file holds."""
        held = bytearray()
        while start.offset + len(held) < self.size:
            await self._add_window(held, start.offset)
            at_end = start.offset + len(held) == self.size
            if at_end or b"\n" in held:
                return self._split(bytes(held), start, at_end=at_end)
            if len(held) > self.max_line_bytes:
                return await self._pass_over(start, len(held))
        return LineBatch((), start)

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
                            raise _unavailable("the object store sent more of the input file than was requested")
        except TimeoutError:
            raise _unavailable("the object store sends the input file too slowly") from None
        if len(held) != end:
            raise _unavailable("the object store cut the input file short")

    def _split(self, held: bytes, start: Cursor, *, at_end: bool) -> LineBatch:
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
            if text.strip(BLANK):
                lines.append(InputLine(number, text if len(text) <= self.max_line_bytes else None))
        return LineBatch(tuple(lines), Cursor(start.offset + offset, number))

    async def _pass_over(self, start: Cursor, known: int) -> LineBatch:
        """Skip the rest of a line that has no newline in its first `known` bytes."""
        offset = start.offset + known
        while offset < self.size:
            ahead = bytearray()
            await self._add_window(ahead, offset)
            newline = ahead.find(b"\n")
            offset += len(ahead) if newline < 0 else newline + 1
            if newline >= 0:
                break
        return LineBatch((InputLine(start.lines + 1, None),), Cursor(offset, start.lines + 1))


def _unavailable(message: str) -> Retryable:
    return Retryable("pinner_unavailable", message, "store_unavailable")
