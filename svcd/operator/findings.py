"""Findings of `svcd check`, and the table that shows them."""

from collections.abc import Iterable

import attrs

from common.text_table import hanging


@attrs.frozen(slots=True)
class Checked:
    """One finding. `right` is None for information that is neither right nor wrong."""

    what: str
    right: bool | None
    detail: str


def summary(findings: Iterable[Checked]) -> str:
    """Return the last line of the table."""
    wrong = [finding.what for finding in findings if finding.right is False]
    return f"{len(wrong)} wrong: {', '.join(wrong)}" if wrong else "nothing is wrong"


def table(findings: Iterable[Checked], columns: int | None = None) -> str:
    """Return one line for each finding, wrapped to the terminal's width."""
    marks = {True: "right", False: "WRONG", None: ""}
    rows = [(marks[finding.right], finding.what, finding.detail) for finding in findings]
    width = max((len(what) for _, what, _ in rows), default=0)
    return "\n".join(hanging(f"{mark:<5}  {what:<{width}}  ", detail, columns, 7) for mark, what, detail in rows)
