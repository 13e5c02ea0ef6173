"""Errors from outside this process, with the error types of the specification.

The code that catches an external error raises one of two errors. `Retryable` means that the same request is safe to
repeat and may succeed later. `Fatal` (`common.daemon.process`) stops the daemon. Outcomes that a caller must handle,
such as a rejected op or an unknown job, are returned as values (`outcomes`).
"""

from typing import Literal

import attrs

ErrorKind = Literal["chain_unreachable", "relay_unavailable", "pinner_unavailable", "not_ready", "busy"]


@attrs.frozen(slots=True)
class Retryable(Exception):
    """Failure outside this process. `kind` and `code` are the error type and the error code of the response."""

    kind: ErrorKind
    message: str
    code: str | None = None
    # Seconds to wait before the next attempt, if known.
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message
