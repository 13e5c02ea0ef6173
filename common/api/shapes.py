"""Base class and scalar types of the API's response bodies.

Each response field is declared once, in a module of this package. Shapes are generic over their number type N: the
coordinator writes `Digits`, because many JSON parsers round integers above 2**53, and clients read `int` (msgspec with
`strict=False`). If clients read only part of a shape, that part is `...Fields`, and the coordinator's full shape
derives from it. Small enumerations are numbers on both sides.

The OpenAPI document is generated from these types. Readers do not enforce the patterns, because clients verify the
values that matter against the chain or their own order.
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


def described(about: str, *example: Any) -> Meta:
    """Describe a member, with an example, if it is not in `WORDS` or differs from the description there."""
    return Meta(description=about, examples=list(example) or None, extra_json_schema={DESCRIBED_HERE: True})


DESCRIBED_HERE: Final = "described_here"
"""Marks a member of a generated schema that has its description in `described` and not in `WORDS`."""
OMITTABLE: Final = "omittable"
"""Marks a member in a generated schema that may be missing and is never null."""

# A member that the coordinator omits instead of sending null. Readers see None.
Omittable = Annotated[T | None, Meta(extra_json_schema={OMITTABLE: True})]
OMITTED: Final[Any] = UNSET
"""Value of an `Omittable` member that is not sent."""


class Shape(msgspec.Struct, frozen=True):
    """A body of the API, or a part of one. `msgspec.to_builtins` gives it back as plain JSON values."""


S = TypeVar("S", bound=Shape)


def read_shape(kind: type[S], value: object) -> S:
    """Read a parsed response body. Ignores unknown members. Raises Refused for another shape."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as odd:
        raise Refused(f"the answer is of another shape: {odd}") from None
