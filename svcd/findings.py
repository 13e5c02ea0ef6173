"""What a look at something found, and the table that shows it."""

from collections.abc import Iterable

import attrs


@attrs.frozen(slots=True)
class Finding:
    """`right` is None for what is only told, and neither right nor wrong."""

    what: str
    right: bool | None
    detail: str


def summary(findings: Iterable[Finding]) -> str:
    """The table's last line."""
    wrong = [finding.what for finding in findings if finding.right is False]
    return f"{len(wrong)} wrong: {', '.join(wrong)}" if wrong else "nothing is wrong"


def table(findings: Iterable[Finding]) -> str:
    marks = {True: "right", False: "WRONG", None: ""}
    rows = [(marks[finding.right], finding.what, finding.detail) for finding in findings]
    width = max((len(what) for _, what, _ in rows), default=0)
    return "\n".join(f"{mark:<5}  {what:<{width}}  {detail}".rstrip() for mark, what, detail in rows)
