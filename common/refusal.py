"""Exception for rejected input.

The reader of the input raises `Refused` with the field, the error code and a message. Callers can return these as they
are.
"""

from collections.abc import Sequence
from typing import Final

import attrs

_MAX_FAULTS_IN_MESSAGE: Final = 16


@attrs.frozen(slots=True)
class Refused(ValueError):
    """Input was rejected.

    `param` names the field at fault, with dots for nested fields, or is None. `code` is the specification's error code,
    or None if the specification has none.
    """

    message: str
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    @classmethod
    def together(cls, faults: "Sequence[Refused]") -> "Refused":
        """Combine one or more refusals: the messages of all, with `param` and `code` of the first."""
        first, *others = faults
        if not others:
            return first
        messages = list(dict.fromkeys(fault.message for fault in faults))
        shown, left = messages[:_MAX_FAULTS_IN_MESSAGE], len(messages) - _MAX_FAULTS_IN_MESSAGE
        return cls("; ".join([*shown, *([f"and {left} more"] if left > 0 else [])]), first.param, first.code)
