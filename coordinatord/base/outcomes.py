"""Expected ends of requests that several services share.

Malformed input is `Refused`, trouble outside is `Retryable`: neither is here.
"""

from typing import Literal

import attrs


@attrs.frozen(slots=True)
class NoSuchObject:
    """`what` there is no such one of."""

    what: str


@attrs.frozen(slots=True)
class NotSigned:
    """The signature is not of who it must be of; `kind` is the error type of the answer."""

    kind: Literal["authentication_error", "invalid_op_signature"]
    code: str | None
    message: str


@attrs.frozen(slots=True)
class WouldRefuse:
    """The chain would refuse, and we know the contract error's name without asking it."""

    name: str
    message: str


@attrs.frozen(slots=True)
class SessionRow:
    """A caller who signed in: a client's address, or an operator's with its provider."""

    address: bytes
    provider_id: int | None
