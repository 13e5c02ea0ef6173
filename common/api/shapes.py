"""Base class and scalar types of the API's response bodies.

Each response field is declared once, in a module of this package. Shapes are generic over their number type N. The
coordinator writes `Digits`, because many JSON parsers round integers above 2**53. Clients read `int` (msgspec with
`strict=False`). If clients read only part of a shape, that part is a class named `...Fields`, and the coordinator's
full shape derives from this class. Small enumerations are numbers on both sides.

The OpenAPI document is generated from these types. `read_shape` does not enforce the patterns, because clients verify
the values that matter against the chain or their own order.
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
    """Return the description of a member that `MEMBER_TEXTS` does not describe, or describes differently. `example` is
    optional."""
    return Meta(description=about, examples=list(example) or None, extra_json_schema={DESCRIBED_HERE: True})


DESCRIBED_HERE: Final = "described_here"
"""Key that marks a schema member whose description comes from `described`, not from `MEMBER_TEXTS`."""
OMITTABLE: Final = "omittable"
"""Key that marks a schema member that may be missing and is never null."""

# A member that the coordinator omits instead of sending null. Readers see None.
Omittable = Annotated[T | None, Meta(extra_json_schema={OMITTABLE: True})]
OMITTED: Final[Any] = UNSET
"""Value of an `Omittable` member that is not sent."""


class Shape(msgspec.Struct, frozen=True):
    """Body of the API, or part of a body. `msgspec.to_builtins` converts a shape to plain JSON values."""


S = TypeVar("S", bound=Shape)


def read_shape(kind: type[S], value: object) -> S:
    """Read a parsed response body and ignore unknown members. Raise Refused if the body does not match `kind`."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(f"the response does not have the expected shape: {error}") from None
