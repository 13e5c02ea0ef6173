"""Facts of a market as rows, and the tables that people read."""

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

_RIGHT: Final = "right"
_WRONG: Final = "WRONG"


@attrs.frozen(slots=True)
class Row:
    """One fact: `expected` is None where nothing is expected of it."""

    fact: str
    found: str
    expected: str | None = None

    @property
    def wrong(self) -> bool:
        return self.expected is not None and self.found != self.expected

    @property
    def verdict(self) -> str:
        return "" if self.expected is None else _WRONG if self.wrong else _RIGHT


def checked(fact: str, found: object, expected: object) -> Row:
    return Row(fact, shown(found), shown(expected))


def told(fact: str, found: object) -> Row:
    return Row(fact, shown(found))


def shown(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple() | list() | frozenset() | set():
            if not value:
                return "none"
            return ", ".join(shown(one) for one in (value if isinstance(value, (tuple, list)) else sorted(value)))
        case bytes():
            return "0x" + value.hex()
        case _:
            return str(value)


def table(rows: Sequence[Row]) -> str:
    """One line for each row; a wrong one says what was expected."""
    return columns(
        (row.verdict, row.fact, row.found + (f"   (expected: {row.expected})" if row.wrong else "")) for row in rows
    )


def columns(lines: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns; the last one may be of any width."""
    cells = [[cell or "-" if n else cell for n, cell in enumerate(line)] for line in lines]
    if not cells:
        return ""
    widths = [max(len(line[n]) for line in cells) for n in range(len(cells[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    return [attrs.asdict(row) | {"right": None if row.expected is None else not row.wrong} for row in rows]
