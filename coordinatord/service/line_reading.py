"""An input file, read a stretch of lines at a time from where the last stretch ended.

What is held at once is one window, or one line when that is longer than a window. A line beyond any submission's size
is passed over without being held.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

import attrs

from coordinatord.service.inspection import BLANK
from coordinatord.trouble import Retryable

WINDOW: Final = 1 << 20
MOST_LINES: Final = 512
LONGEST_LINE: Final = 22 << 20  # a submission with the largest inline container, and its fields

# The bytes from `first` to `last` inclusive, piece by piece.
ReadRange = Callable[[int, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]


@attrs.frozen(slots=True)
class Line:
    """`number` counts from 1, blank lines too. `text` is None when the line is too long to be a submission."""

    number: int
    text: bytes | None = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Cursor:
    """Everything before `offset`, which is `lines` lines, is done."""

    offset: int
    lines: int


@attrs.frozen(slots=True)
class Stretch:
    """Lines that are not blank, and where the next stretch begins."""

    lines: tuple[Line, ...]
    end: Cursor


@attrs.frozen(slots=True)
class LineReader:
    read: ReadRange
    size: int  # of the file
    window: int = WINDOW
    most_lines: int = MOST_LINES
    longest_line: int = LONGEST_LINE

    async def stretch(self, start: Cursor) -> Stretch:
        """The next lines, at least one while there are any left. Raises Retryable when the store does not give
        what it holds."""
        held = bytearray()
        while start.offset + len(held) < self.size:
            await self._add_window(held, start.offset)
            at_end = start.offset + len(held) == self.size
            if at_end or b"\n" in held:
                return self._split(bytes(held), start, at_end=at_end)
            if len(held) > self.longest_line:
                return await self._pass_over(start, len(held))
        return Stretch((), start)

    async def _add_window(self, held: bytearray, offset: int) -> None:
        first = offset + len(held)
        # Twice as much each time: a long line is not fetched in slivers.
        last = min(first + max(self.window, len(held)), self.size) - 1
        before = len(held)
        async with self.read(first, last) as pieces:
            async for piece in pieces:
                held += piece
        if len(held) - before != last + 1 - first:
            raise Retryable("pinner_unavailable", "the object store cut the input file short", "store_unavailable")

    def _split(self, held: bytes, start: Cursor, *, at_end: bool) -> Stretch:
        """Whole lines only; the last one of the file may lack its newline."""
        lines: list[Line] = []
        offset, number = 0, start.lines
        while offset < len(held) and len(lines) < self.most_lines:
            newline = held.find(b"\n", offset)
            if newline < 0 and not at_end:
                break
            text = held[offset:] if newline < 0 else held[offset:newline]
            offset = len(held) if newline < 0 else newline + 1
            number += 1
            if text.strip(BLANK):
                lines.append(Line(number, text if len(text) <= self.longest_line else None))
        return Stretch(tuple(lines), Cursor(start.offset + offset, number))

    async def _pass_over(self, start: Cursor, known: int) -> Stretch:
        """To the end of a line of which `known` bytes hold no newline."""
        offset = start.offset + known
        while offset < self.size:
            ahead = bytearray()
            await self._add_window(ahead, offset)
            newline = ahead.find(b"\n")
            offset += len(ahead) if newline < 0 else newline + 1
            if newline >= 0:
                break
        return Stretch((Line(start.lines + 1, None),), Cursor(offset, start.lines + 1))
