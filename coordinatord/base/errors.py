"""Errors that come from outside this process, in the specification's own words, and the outcomes that routes share.

The place that sees the error decides what it is: `Retryable` says that the same request may succeed later and that
nothing took effect; `Fatal` (`common.daemon.process`) stops the daemon. Answers to callers (a refused op, an unknown
job) are no errors: they are returned as values.
"""

from typing import Literal

import attrs

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


# Expected ends of requests that several services share.
#
# Malformed input is `Refused`, a failure outside is `Retryable`: neither is here.


@attrs.frozen(slots=True)
class NoSuchObject:
    """Nothing of that name or id. `what`: what was asked for, such as "job"."""

    what: str


@attrs.frozen(slots=True)
class NotSigned:
    """Signature of somebody else than the one who must sign; `kind` is the error type of the answer."""

    kind: Literal["authentication_error", "invalid_op_signature"]
    code: str | None
    message: str


@attrs.frozen(slots=True)
class WouldRefuse:
    """Call that the chain would refuse, with the name of the contract's error."""

    name: str
    message: str


@attrs.frozen(slots=True)
class SessionRow:
    """A caller who signed in: a client's address, or an operator's with its provider."""

    address: bytes
    provider_id: int | None
