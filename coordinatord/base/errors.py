"""Error for failures outside this process, such as an unreachable node or database.

Code that catches such a failure raises `Retryable` if the same request is safe to repeat and may succeed later, or
`Fatal` (`common.daemon.process`) to stop the daemon. Outcomes that a caller must handle, such as a rejected op or an
unknown job, are returned as values (`coordinatord.base.outcomes`) and not raised.
"""

from typing import Literal

import attrs

ErrorKind = Literal["chain_unreachable", "relay_unavailable", "pinner_unavailable", "not_ready", "busy"]


@attrs.frozen(slots=True)
class Retryable(Exception):
    """Failure outside this process. `kind` and `code` are the specification's error type and error code for the
    response."""

    kind: ErrorKind
    message: str
    code: str | None = None
    # Seconds to wait before the next attempt, if known.
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message
