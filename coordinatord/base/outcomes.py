"""Outcomes of requests that several services share.

Malformed input is `Refused`, and a failure outside this process is `Retryable`. Neither is here.
"""

from typing import Literal

import attrs


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
