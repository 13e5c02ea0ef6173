"""Table of checks that every program prints, with the result and the remedy of each."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import attrs

from common.text_table import hanging

_MARK_WIDTH: Final = 7


class Result(StrEnum):
    """Result of a check. UNKNOWN is for a check that could not be made."""

    RIGHT = "right"
    WRONG = "WRONG"
    UNKNOWN = "unknown"


@attrs.frozen(slots=True)
class CheckRow:
    """One line of the table. `result` is None for a fact that has no right or wrong value."""

    what: str
    result: Result | None
    detail: str
    remedy: str = ""

    @property
    def text(self) -> str:
        return f"{self.detail}: {self.remedy}" if self.remedy else self.detail


def right(what: str, detail: str) -> CheckRow:
    return CheckRow(what, Result.RIGHT, detail)


def wrong(what: str, detail: str, remedy: str = "") -> CheckRow:
    return CheckRow(what, Result.WRONG, detail, remedy)


def unknown(what: str, detail: str, remedy: str = "") -> CheckRow:
    return CheckRow(what, Result.UNKNOWN, detail, remedy)


def fact(what: str, detail: str, remedy: str = "") -> CheckRow:
    return CheckRow(what, None, detail, remedy)


def judged(what: str, is_right: bool, detail: str, remedy: str = "") -> CheckRow:
    """Return a right row, or a wrong one with the remedy."""
    return right(what, detail) if is_right else wrong(what, detail, remedy)


def compared(what: str, found: object, expected: object) -> CheckRow:
    """Return a right row if both values read the same, otherwise a wrong row that shows both."""
    shown, wanted = readable(found), readable(expected)
    return right(what, shown) if shown == wanted else wrong(what, f"{shown} (expected {wanted})")


def readable(value: object) -> str:
    """Return a value as the table shows it.

    >>> readable({300, 60}), readable(True), readable(())
    ('60, 300', 'yes', 'none')
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple() | list():
            return ", ".join(map(readable, value)) or "none"
        case frozenset() | set():
            return readable(sorted(value))
        case bytes():
            return "0x" + value.hex()
        case _:
            return str(value)


def wrong_names(rows: Iterable[CheckRow]) -> list[str]:
    return [row.what for row in rows if row.result is Result.WRONG]


def check_lines(rows: Sequence[CheckRow], columns: int | None = None) -> str:
    """Return one line for each row, wrapped to the columns of a terminal."""
    longest = max((len(row.what) for row in rows), default=0)
    width = longest if columns is None else min(longest, columns // 2)  # a longer name is wrapped with its text
    lines = []
    for row in rows:
        mark, name = f"{row.result or '':<{_MARK_WIDTH}}  ", f"{row.what:<{width}}  "
        if len(row.what) > width:
            lines.append(hanging(mark, name + row.text, columns, len(mark)))
        else:
            lines.append(hanging(mark + name, row.text, columns, len(mark)))
    return "\n".join(lines)


def check_summary(rows: Sequence[CheckRow]) -> str:
    """Return one line that names the wrong rows and counts the unknown ones."""
    names = wrong_names(rows)
    unknowns = sum(row.result is Result.UNKNOWN for row in rows)
    found = f"{len(names)} wrong: {', '.join(names)}" if names else "nothing is wrong"
    return f"{found}; {unknowns} unknown" if unknowns else found


def check_table(rows: Sequence[CheckRow], columns: int | None = None) -> str:
    """Return the lines and the summary."""
    return "\n".join((*([check_lines(rows, columns)] if rows else []), check_summary(rows)))


def check_records(rows: Iterable[CheckRow]) -> list[dict[str, str | None]]:
    """Return the rows for JSON."""
    return [attrs.asdict(row) for row in rows]


def check_json(rows: Iterable[CheckRow]) -> str:
    return json.dumps(check_records(rows), indent=2, ensure_ascii=False)
