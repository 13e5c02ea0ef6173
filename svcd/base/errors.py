"""Errors of other services. Expected answers, such as a refused claim, are values instead."""

import attrs


@attrs.frozen(slots=True)
class Unavailable(Exception):
    """A read failed: there was no answer, or it was an error."""

    what: str
    status: int | None = None  # None without an answer

    def __str__(self) -> str:
        return self.what
