"""Finding of one check by `svc doctor`, and its remedy."""

from collections.abc import Iterable
from enum import StrEnum

import attrs


class Health(StrEnum):
    WELL = "ok"
    DOUBTFUL = "warning"
    WRONG = "wrong"
    UNCHECKED = "unchecked"


@attrs.frozen
class Finding:
    """`remedy` is there for whatever is not well."""

    check: str
    health: Health
    seen: str
    remedy: str | None = None

    @classmethod
    def well(cls, check: str, seen: str) -> "Finding":
        return cls(check, Health.WELL, seen)

    @classmethod
    def doubtful(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.DOUBTFUL, seen, remedy)

    @classmethod
    def wrong(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.WRONG, seen, remedy)

    @classmethod
    def unchecked(cls, check: str, seen: str, remedy: str) -> "Finding":
        return cls(check, Health.UNCHECKED, seen, remedy)


def any_wrong(findings: Iterable[Finding]) -> bool:
    return any(finding.health is Health.WRONG for finding in findings)
