"""Format plain-text tables that fit the terminal's width."""

import os
import sys
from collections.abc import Collection, Sequence
from textwrap import wrap
from typing import Final

_COLUMN_GAP: Final = "  "


def terminal_columns() -> int | None:
    """Return the width of the terminal on standard output, or None if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None  # 0 on a terminal without a size


def hanging_text(head: str, text: str, columns: int | None, indent: int = 2) -> str:
    """Return `head` and `text`, with the text wrapped in a column to the right of the head.

    If a word does not fit to the right of the head, the text starts on the next line.

    >>> print(hanging_text("key    ", "of the market", 14))
    key    of the
           market
    >>> print(hanging_text("key    ", "0123456789", 14))
    key
      0123456789
    """
    if columns is None or not text or len(head) + len(text) <= columns:
        return f"{head}{text}".rstrip()
    at, lines = len(head), [head]
    if head and max(map(len, text.split()), default=0) > columns - len(head):
        at, lines = indent, [head, ""]
    first, *others = wrap(text, max(1, columns - at), break_long_words=False, break_on_hyphens=False)
    lines[-1] = f"{lines[-1] or ' ' * at}{first}"
    return "\n".join(line.rstrip() for line in (*lines, *(" " * at + line for line in others)))


def grid_lines(
    rows: Sequence[Sequence[str]], columns: int | None, *, right_aligned: Collection[int] = (), own_line_cells: int = 1
) -> list[str]:
    """Return rows in aligned columns. `right_aligned` has indexes of columns.

    If the grid is wider than the terminal, the first `own_line_cells` cells of each row are printed on a line of their
    own, above the other cells.
    """
    if not rows:
        return []
    lines = _aligned_lines(rows, right_aligned)
    if columns is None or max(map(len, lines)) <= columns:
        return lines
    rest = _aligned_lines([row[own_line_cells:] for row in rows], {number - own_line_cells for number in right_aligned})
    return [
        line
        for row, below in zip(rows, rest, strict=True)
        for line in (
            _COLUMN_GAP.join(row[:own_line_cells]).rstrip(),
            hanging_text(_COLUMN_GAP, below, columns, indent=len(_COLUMN_GAP)),
        )
    ]


def _aligned_lines(rows: Sequence[Sequence[str]], right_aligned: Collection[int]) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        _COLUMN_GAP.join(
            cell.rjust(width) if number in right_aligned else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
