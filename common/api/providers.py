"""Shapes of the responses to providers' ops, simulated claims and asks."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from common.api.errors import PROVIDER_OPS, contract_error_names
from common.api.shapes import Bytes32, Digits, HexBytes, Omittable, Shape, described
from common.api.worked_order import RESULT_CID


class OpDoneShape(Shape, frozen=True):
    """Response to an op that was mined and took effect."""

    tx_hash: Bytes32
    status: Annotated[Literal["success"], described("`success`: the op took effect", "success")]
    block_number: Digits
    result_cid: Annotated[
        Omittable[str], described("content id of the sealed result; on a settle only", RESULT_CID)
    ] = None


class OpRefused(Shape, frozen=True):
    """Response to a rejected op. `reason` is the contract error's name, or `unknown` with the revert data in `raw`."""

    ok: Annotated[Literal[False], described("false: nothing took effect", False)]
    reason: Annotated[
        str,
        described("name of the contract error, or `unknown`", "NotOpen"),
        Meta(extra_json_schema={"enum": [*contract_error_names(*PROVIDER_OPS), "unknown"]}),
    ]
    raw: Omittable[HexBytes] = None


class ClaimAccepted(Shape, frozen=True):
    """The chain would accept the claim."""

    ok: Annotated[Literal[True], described("true", True)]


_CLAIM_REFUSAL_REASONS: Final = (
    "UnknownJob",
    "NotOpen",
    "UnknownProvider",
    "NotListed",
    "ModelNotAllowed",
    "NotDesignated",
    "AtCapacity",
    "unknown",
)


class ClaimRefused(Shape, frozen=True):
    """The chain would reject the claim."""

    ok: Annotated[Literal[False], described("false", False)]
    reason: Annotated[
        str,
        described("the first check that fails", "NotOpen"),
        Meta(extra_json_schema={"enum": list(_CLAIM_REFUSAL_REASONS)}),
    ]


class PublishedShape(Shape, frozen=True):
    """Response to published asks."""

    provider_id: Digits
    signed_at: Digits
    published: Literal[True]
    tx_hash: Bytes32
