"""Version of the programs, and the error that stops a daemon."""

from typing import Final

import attrs

RELEASE: Final = "0.1.0"
"""Version of all programs, as in pyproject.toml (a test compares both). Reading package metadata would be slow."""


@attrs.frozen(slots=True)
class Fatal(Exception):
    """Error with which a daemon cannot run, e.g. a wrong setting, a port in use or an unexpected chain."""

    message: str

    def __str__(self) -> str:
        return self.message


def leaf_exceptions(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions in a group and in all groups nested in the group."""
    leaves: list[BaseException] = []
    for inner in group.exceptions:
        leaves += leaf_exceptions(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves
