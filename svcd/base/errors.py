"""Errors of other services. Expected responses, such as a refused claim, are return values and not exceptions."""

import attrs


@attrs.frozen(slots=True)
class Unavailable(Exception):
    """Failure to read from another service: no response, or an error response."""

    detail: str
    status: int | None = None  # None if no response came

    def __str__(self) -> str:
        return self.detail
