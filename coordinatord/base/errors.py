"""Errors from outside this process, in the specification's words.

The code that sees the error classifies it. `Retryable` says that the same request may succeed later and that nothing
took effect. `Fatal` (`common.daemon.process`) stops the daemon. Answers to callers, such as a rejected op or an
unknown job, are not errors: they are returned as values.
"""

from typing import Literal

import attrs

ErrorKind = Literal["chain_unreachable", "relay_unavailable", "pinner_unavailable", "not_ready", "busy"]


@attrs.frozen(slots=True)
class Retryable(Exception):
    """Failure outside this process. `kind` is the error type of the response, and `code` its code."""

    kind: ErrorKind
    message: str
    code: str | None = None
    # Seconds, if the delay is known.
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message
