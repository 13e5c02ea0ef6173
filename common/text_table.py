"""Tables of plain text that fit the terminal they are printed on."""

import os
import sys
from collections.abc import Collection, Sequence
from textwrap import wrap
from typing import Final

_GAP: Final = "  "


def terminal_columns() -> int | None:
    """Return the width of the terminal on standard output, or None if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size(sys.stdout.fileno()).columns or None  # 0 on a terminal without a size


def hanging(head: str, text: str, columns: int | None, indent: int = 2) -> str:
    """Return the head, followed by the wrapped text on the same line.

    If a word does not fit after the head, the text starts on the next line, indented.

    >>> print(hanging("key    ", "of the market", 14))
    key    of the
           market
    >>> print(hanging("key    ", "0123456789", 14))
    key
      0123456789
    """
    if columns is None or len(head) + len(text) <= columns:
        return f"{head}{text}".rstrip()
    at, lines = len(head), [head]
    if head and max(map(len, text.split()), default=0) > columns - len(head):
        at, lines = indent, [head, ""]
    first, *others = wrap(text, max(1, columns - at), break_long_words=False, break_on_hyphens=False)
    lines[-1] = f"{lines[-1] or ' ' * at}{first}"
    return "\n".join(line.rstrip() for line in (*lines, *(" " * at + line for line in others)))


def grid(
    rows: Sequence[Sequence[str]], columns: int | None, *, right: Collection[int] = (), alone: int = 1
) -> list[str]:
    """Return rows in aligned columns. `right` has the indexes of right-aligned columns.

    If the grid is wider than the terminal, the first `alone` cells of each row get their own line above the rest.
    """
    if not rows:
        return []
    lines = _aligned(rows, right)
    if columns is None or max(map(len, lines)) <= columns:
        return lines
    rest = _aligned([row[alone:] for row in rows], {number - alone for number in right})
    return [
        line
        for row, below in zip(rows, rest, strict=True)
        for line in (_GAP.join(row[:alone]).rstrip(), hanging(_GAP, below, columns, indent=len(_GAP)))
    ]


def _aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
