"""Facts of a market as rows, and the tables and JSON made of them."""

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from common.text_table import grid, hanging, terminal_columns

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
    """One line for each row, wrapped to the terminal; a wrong one says what was expected."""
    terminal = terminal_columns()
    longest = max((len(row.fact) for row in rows), default=0)
    width = longest if terminal is None else min(longest, terminal // 2)  # a longer fact is wrapped with its value
    lines = []
    for row in rows:
        mark, fact = f"{row.verdict:<{len(_RIGHT)}}  ", f"{row.fact:<{width}}  "
        found = (row.found or "-") + (f"   (expected: {row.expected})" if row.wrong else "")
        if len(row.fact) > width:
            lines.append(hanging(mark, fact + found, terminal))
        else:
            lines.append(hanging(mark + fact, found, terminal, len(mark)))
    return "\n".join(lines)


def columns(lines: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns that fit the terminal."""
    cells = [[cell or "-" if n else cell for n, cell in enumerate(line)] for line in lines]
    return "\n".join(grid(cells, terminal_columns(), alone=2))


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    return [attrs.asdict(row) | {"right": None if row.expected is None else not row.wrong} for row in rows]
