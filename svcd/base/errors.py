"""Errors of other services. Expected responses, such as a refused claim, are return values and not exceptions."""

import attrs


@attrs.frozen(slots=True)
class Unavailable(Exception):
    """Failure to read from another service: no response, or an error response."""

    what: str
    status: int | None = None  # None without a response

    def __str__(self) -> str:
        return self.what
