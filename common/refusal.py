"""The one exception that readers of foreign bytes raise.

It is raised where the input is read and carries all that an answer needs: which field, which code, and a
sentence for a person. Nothing above has to translate it.
"""

from collections.abc import Sequence
from typing import Final

import attrs

_MOST_TOLD: Final = 16  # faults that one message names


@attrs.frozen(slots=True)
class Refused(ValueError):
    """Input that this house does not accept.

    `param` names the field at fault (dotted for nested ones) or is None; `code` is the machine-readable
    discriminator of the specification, or None where it gives none.
    """

    message: str
    param: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        return self.message

    @classmethod
    def together(cls, faults: "Sequence[Refused]") -> "Refused":
        """One refusal of several, at least one: it names them all, and is for the rest the first."""
        first, *others = faults
        if not others:
            return first
        messages = list(dict.fromkeys(fault.message for fault in faults))
        told, left = messages[:_MOST_TOLD], len(messages) - _MOST_TOLD
        return cls("; ".join([*told, *([f"and {left} more"] if left > 0 else [])]), first.param, first.code)
