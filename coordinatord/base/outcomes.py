"""Outcomes that several services return.

Malformed input raises `Refused` instead, and a failure outside this process raises `Retryable`.
"""

from typing import Literal

import attrs


@attrs.frozen(slots=True)
class NoSuchObject:
    """No object has this name or id. `kind` is the kind of object, such as "job"."""

    kind: str


@attrs.frozen(slots=True)
class Unauthorised:
    """The signer or the session may not make this request. `kind` is the error type of the response."""

    kind: Literal["authentication_error", "invalid_op_signature"]
    code: str | None
    message: str


@attrs.frozen(slots=True)
class PredictedRefusal:
    """The chain would refuse the call, so it is not sent. `name` is the contract's error."""

    name: str
    message: str


@attrs.frozen(slots=True)
class SessionRow:
    """Session of a signed-in address. An operator's session also has its provider id."""

    address: bytes
    provider_id: int | None
