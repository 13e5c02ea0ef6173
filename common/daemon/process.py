"""Release of the programs, and the error that stops a daemon."""

from typing import Final

import attrs

RELEASE: Final = "0.1.0"
"""Version of all programs, as in pyproject.toml (a test compares them). Reading the package metadata would slow the
start."""


@attrs.frozen(slots=True)
class Fatal(Exception):
    """The daemon cannot run, e.g. because of a wrong setting, a port in use or an unexpected chain."""

    message: str

    def __str__(self) -> str:
        return self.message


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions of nested groups."""
    found: list[BaseException] = []
    for inner in group.exceptions:
        found += leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return found
