"""Errors outside this daemon. Answers to expect (a refused claim, an unknown job) are values instead."""

import attrs


@attrs.frozen(slots=True)
class Unavailable(Exception):
    """A read that did not come through: no answer, or one that says to come back later. Nothing took effect."""

    what: str
    status: int | None = None  # None: there was no answer at all

    def __str__(self) -> str:
        return self.what
