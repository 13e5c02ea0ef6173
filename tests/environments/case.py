"""One situation in which the project's commands are to hold."""

from collections.abc import Callable

import attrs

from tests.environments.room import Room


def always() -> None:
    """It can be tried anywhere."""


@attrs.frozen
class Case:
    """`why_not` says why it cannot be tried on this machine; None when it can."""

    name: str
    what: str
    run: Callable[[Room], None]
    why_not: Callable[[], str | None] = always
