"""Vocabulary of the API's shapes: the base of every body that the coordinator answers with, and its scalar types.

Each field of an answer is declared once, in one of the modules beside this one. Shapes are generic over their number
type N: the coordinator writes `Digits`, because JSON's readers round integers above 2**53, and clients read `int`
(msgspec with `strict=False`). A shape that clients read in part is declared as `...Fields`; the coordinator's full
shape derives from it and narrows what it promises. Small enumerations are numbers on both sides.

The types yield the OpenAPI document, so the documented shape is the one that is sent. Patterns document what is sent;
readers do not enforce them, since a client verifies what it depends on against the chain or its own order.
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta

from common.refusal import Refused

N = TypeVar("N")
T = TypeVar("T")

Digits = Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]*)$", description="a decimal integer")]
SignedDigits = Annotated[str, Meta(pattern=r"^(0|-?[1-9][0-9]*)$", description="a decimal integer")]
HexBytes = Annotated[str, Meta(extra_json_schema={"pattern": r"^0x([0-9a-f]{2})*$"})]
Address = Annotated[str, Meta(extra_json_schema={"pattern": r"^0x[0-9a-f]{40}$"})]
Bytes32 = Annotated[str, Meta(extra_json_schema={"pattern": r"^0x[0-9a-f]{64}$"})]
BareBytes32 = Annotated[str, Meta(extra_json_schema={"pattern": r"^[0-9a-f]{64}$"})]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]


def said(about: str, *example: Any) -> Meta:
    """Sentence, unit and value of a member that means something else here than `WORDS` says, or is here alone."""
    return Meta(description=about, examples=list(example) or None, extra_json_schema={SAID_HERE: True})


SAID_HERE: Final = "said_here"
"""Marks, in a generated schema, a member whose sentence is its shape's own."""
OMITTABLE: Final = "omittable"
"""Marks, in a generated schema, a member that may be absent and is never null."""

# A member that the coordinator leaves out instead of sending null; readers find None.
Omittable = Annotated[T | None, Meta(extra_json_schema={OMITTABLE: True})]
OMITTED: Final[Any] = UNSET
"""The value of an `Omittable` member that is not sent."""


class Shape(msgspec.Struct, frozen=True):
    """A body of the API, or a part of one. `msgspec.to_builtins` gives it back as plain JSON values."""


S = TypeVar("S", bound=Shape)


def read_shape(kind: type[S], value: object) -> S:
    """A parsed body that a client got; members that it does not know are left out. Raises Refused for another shape."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as odd:
        raise Refused(f"the answer is of another shape: {odd}") from None
