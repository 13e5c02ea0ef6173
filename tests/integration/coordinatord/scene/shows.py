"""`@shows(route, status, code)` names a response that a test demonstrates. It is checked against the responses
received."""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.specification import ANY_HASH, CONTRACT_ERROR
from tests.integration.coordinatord.scene.stage import Seen

T = TypeVar("T", bound=Callable[..., object])

_HASH = re.compile("0x[0-9a-f]{64}")
_ERROR_NAME = re.compile("[A-Z][A-Za-z]+")


def shows_each(answers: Iterable[tuple[str, int, str | None]]) -> Callable[[T], T]:
    def mark(test: T) -> T:
        for answer in answers:
            test = shows(*answer)(test)
        return test

    return mark


def shows_relay_ends(route: str) -> Callable[[T], T]:
    """Mark the responses that `relay_ends.check_each_end` checks."""
    dropped = [(route, 503, code) for code in relay_ends.CODES]
    return shows_each([*dropped, (route, 429, "busy"), (route, 504, ANY_HASH)])


def shows(route: str, status: int, code: str | None = None) -> pytest.MarkDecorator:
    return pytest.mark.shows(route, status, code)


def assert_shown(node: pytest.Item, answers: Iterable[Seen]) -> None:
    seen = list(answers)
    for mark in node.iter_markers("shows"):
        assert any(is_shown(answer, *mark.args) for answer in seen), f"{mark.args} was not among {seen}"


def is_shown(answer: Seen, route: str, status: int, code: str | None) -> bool:
    if answer.status != status or not re.fullmatch(_pattern(route), answer.route):
        return False
    if code == ANY_HASH:
        return answer.code is not None and _HASH.fullmatch(answer.code) is not None
    if code == CONTRACT_ERROR:
        return answer.code is not None and _ERROR_NAME.fullmatch(answer.code) is not None
    return answer.code == code


def _pattern(route: str) -> str:
    """Return a pattern in which `{name}` matches one segment and `{name...}` the rest."""
    return "".join(
        ".+" if part.endswith("...}") else "[^/]+" if part.startswith("{") else re.escape(part)
        for part in re.split(r"(\{[^}]*\})", route)
    )
