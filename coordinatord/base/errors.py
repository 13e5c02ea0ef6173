"""Errors that come from outside this process, in the specification's own words.

The place that sees the error decides what it is: `Retryable` says that the same request may succeed later and that
nothing took effect; `Fatal` stops the daemon. Answers to callers (a refused op, an unknown job) are no errors: they
are returned as values.
"""

from typing import Literal

import attrs

from common.daemon.errors import Fatal

__all__ = ["ErrorKind", "Fatal", "Retryable"]

ErrorKind = Literal["chain_unreachable", "relay_unavailable", "pinner_unavailable", "not_ready", "busy"]


@attrs.frozen(slots=True)
class Retryable(Exception):
    """Failure of something outside. `kind` is the error type of the answer, `code` its code."""

    kind: ErrorKind
    message: str
    code: str | None = None
    retry_after: int | None = None  # seconds, where we know better than the caller

    def __str__(self) -> str:
        return self.message
