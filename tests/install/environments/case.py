"""One environment in which the project's commands must work."""

from collections.abc import Callable

import attrs

from tests.install.environments.room import Room


def always() -> None:
    """Return no reason: the case runs on every machine."""


@attrs.frozen
class Case:
    """`why_not` returns the reason why this machine cannot run the case, or None."""

    name: str
    what: str
    run: Callable[[Room], None]
    why_not: Callable[[], str | None] = always
