"""Result of one check of `svc doctor`, with its remedy."""

from collections.abc import Iterable
from enum import StrEnum

import attrs


class Health(StrEnum):
    """State of one checked item."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    UNCHECKED = "unchecked"


@attrs.frozen
class Finding:
    """Result of one check. Each finding that is not ok has a remedy."""

    check: str
    health: Health
    seen: str
    remedy: str | None = None

    @classmethod
    def ok(cls, check: str, seen: str) -> "Finding":
        return cls(check, Health.OK, seen)

    @classmethod
    def warning(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.WARNING, seen, remedy)

    @classmethod
    def wrong(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.WRONG, seen, remedy)

    @classmethod
    def unchecked(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.UNCHECKED, seen, remedy)


def any_wrong(findings: Iterable[Finding]) -> bool:
    return any(finding.health is Health.WRONG for finding in findings)
