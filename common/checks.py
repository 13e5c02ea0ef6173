"""Table of checks, which the programs print: name, result, detail and remedy of each check."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import attrs

from common.text_table import hanging_text

_MARK_WIDTH: Final = 7


class CheckResult(StrEnum):
    """Result of a check. UNKNOWN means that the check could not run."""

    RIGHT = "right"
    WRONG = "WRONG"
    UNKNOWN = "unknown"


@attrs.frozen(slots=True)
class CheckRow:
    """One line of the table. `what` names the check. `result` is None for a row that only shows a value."""

    what: str
    result: CheckResult | None
    detail: str
    remedy: str = ""

    @property
    def text(self) -> str:
        return f"{self.detail}: {self.remedy}" if self.remedy else self.detail


def right(what: str, detail: str) -> CheckRow:
    """Return the row of a check that passed."""
    return CheckRow(what, CheckResult.RIGHT, detail)


def wrong(what: str, detail: str, remedy: str = "") -> CheckRow:
    """Return the row of a check that failed."""
    return CheckRow(what, CheckResult.WRONG, detail, remedy)


def unknown(what: str, detail: str, remedy: str = "") -> CheckRow:
    """Return the row of a check that could not run."""
    return CheckRow(what, CheckResult.UNKNOWN, detail, remedy)


def fact(what: str, detail: str, remedy: str = "") -> CheckRow:
    """Return a row that shows a value, and is neither a passed nor a failed check."""
    return CheckRow(what, None, detail, remedy)


def right_or_wrong(what: str, is_right: bool, detail: str, remedy: str = "") -> CheckRow:
    """Return the row of a check: passed if `is_right`, otherwise failed, with the remedy."""
    return right(what, detail) if is_right else wrong(what, detail, remedy)


def comparison_row(what: str, found: object, expected: object) -> CheckRow:
    """Return the row of a check: passed if both values have the same text, otherwise failed."""
    found_text, expected_text = readable_value(found), readable_value(expected)
    if found_text == expected_text:
        return right(what, found_text)
    return wrong(what, f"{found_text} (expected {expected_text})")


def readable_value(value: object) -> str:
    """Return a value as the table shows it.

    >>> readable_value({300, 60}), readable_value(True), readable_value(())
    ('60, 300', 'yes', 'none')
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case tuple() | list():
            return ", ".join(map(readable_value, value)) or "none"
        case frozenset() | set():
            return readable_value(sorted(value))
        case bytes():
            return "0x" + value.hex()
        case _:
            return str(value)


def wrong_names(rows: Iterable[CheckRow]) -> list[str]:
    """Return the names of the checks that failed."""
    return [row.what for row in rows if row.result is CheckResult.WRONG]


def check_lines(rows: Sequence[CheckRow], columns: int | None = None) -> str:
    """Return one line for each row, wrapped to the columns of a terminal."""
    longest_name = max((len(row.what) for row in rows), default=0)
    # A name longer than `width` is wrapped together with its text.
    width = longest_name if columns is None else min(longest_name, columns // 2)
    lines = []
    for row in rows:
        mark, name = f"{row.result or '':<{_MARK_WIDTH}}  ", f"{row.what:<{width}}  "
        if len(row.what) > width:
            lines.append(hanging_text(mark, name + row.text, columns, len(mark)))
        else:
            lines.append(hanging_text(mark + name, row.text, columns, len(mark)))
    return "\n".join(lines)


def check_summary(rows: Sequence[CheckRow]) -> str:
    """Return one line with the names of the failed checks and the number of unknown ones."""
    names = wrong_names(rows)
    unknowns = sum(row.result is CheckResult.UNKNOWN for row in rows)
    summary = f"{len(names)} wrong: {', '.join(names)}" if names else "nothing is wrong"
    return f"{summary}; {unknowns} unknown" if unknowns else summary


def check_table(rows: Sequence[CheckRow], columns: int | None = None) -> str:
    """Return the rows as lines, followed by the summary line."""
    return "\n".join((*([check_lines(rows, columns)] if rows else []), check_summary(rows)))


def check_records(rows: Iterable[CheckRow]) -> list[dict[str, str | None]]:
    """Return the rows as JSON objects."""
    return [attrs.asdict(row) for row in rows]


def check_json(rows: Iterable[CheckRow]) -> str:
    return json.dumps(check_records(rows), indent=2, ensure_ascii=False)
