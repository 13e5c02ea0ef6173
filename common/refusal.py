"""Exception for rejected input.

Code that parses input raises `Refused` with a message, the field and the error code. The API returns all three
unchanged.
"""

from collections.abc import Sequence
from typing import Final

import attrs

_MAX_FAULTS_IN_MESSAGE: Final = 16


@attrs.frozen(slots=True)
class Refused(ValueError):
    """Error for rejected input.

    `param` names the field at fault, with dots for nested fields, or is None. `code` is the specification's error code,
    or None if the specification has none.
    """

    message: str
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    @classmethod
    def combine(cls, faults: "Sequence[Refused]") -> "Refused":
        """Combine refusals into one with up to 16 of the messages, and with `param` and `code` of the first refusal."""
        first, *others = faults
        if not others:
            return first
        messages = list(dict.fromkeys(fault.message for fault in faults))
        shown, omitted = messages[:_MAX_FAULTS_IN_MESSAGE], len(messages) - _MAX_FAULTS_IN_MESSAGE
        return cls("; ".join([*shown, *([f"and {omitted} more"] if omitted > 0 else [])]), first.param, first.code)
