"""The one exception that readers of foreign bytes raise.

It is raised where the input is read and carries all that an answer needs: which field, which code, and a
sentence for a person. Nothing above has to translate it.
"""

import attrs


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
