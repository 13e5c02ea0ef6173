"""Shapes of the answers that providers get: ops, simulated claims, published asks, the keys and releases of escrow."""

from typing import Annotated, Final, Generic, Literal, TypeVar

from msgspec import Meta

from common.api.errors import OPS, contract_errors
from common.api.shapes import BareBytes32, Base64, Bytes32, Digits, HexBytes, Omittable, Shape, said
from common.api.worked_order import RESULT_CID
from common.escrow import MOCK, STATIC


class OpDoneShape(Shape, frozen=True):
    """An op that is mined."""

    tx_hash: Bytes32
    status: Annotated[Literal["success"], said("`success`: the op took effect", "success")]
    block_number: Digits
    result_cid: Annotated[Omittable[str], said("content id of the sealed result; on a settle only", RESULT_CID)] = None


class OpRefused(Shape, frozen=True):
    """`reason` is the contract error's name; `unknown` comes with the revert data in `raw`."""

    ok: Annotated[Literal[False], said("false: nothing took effect", False)]
    reason: Annotated[
        str,
        said("name of the contract error, or `unknown`", "NotOpen"),
        Meta(extra_json_schema={"enum": [*contract_errors(*OPS), "unknown"]}),
    ]
    raw: Omittable[HexBytes] = None


class ClaimAccepted(Shape, frozen=True):
    """The chain would take the claim."""

    ok: Annotated[Literal[True], said("true", True)]


_CLAIM_CHECKS: Final = (
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
    """The chain would refuse the claim."""

    ok: Annotated[Literal[False], said("false", False)]
    reason: Annotated[
        str, said("the first check that fails", "NotOpen"), Meta(extra_json_schema={"enum": list(_CLAIM_CHECKS)})
    ]


class PublishedShape(Shape, frozen=True):
    """Asks that are published."""

    provider_id: Digits
    signed_at: Digits
    published: Literal[True]
    tx_hash: Bytes32


# Shapes of the escrow. Its keys and hashes are written without 0x, as the specification has them.

E = TypeVar("E")


class BoundEvidence(Shape, frozen=True):
    report_data: BareBytes32
    debug: bool
    release: int


class EvidenceShape(BoundEvidence, frozen=True):
    """Evidence as clients read it, of whatever type: they take or refuse it by what it says."""

    type: Annotated[str, said("kind of the evidence", STATIC)]


class StaticEvidence(BoundEvidence, frozen=True, tag_field="type", tag=STATIC):
    """Evidence of an escrow whose key is its operator's."""


class MockEvidenceShape(BoundEvidence, frozen=True, tag_field="type", tag=MOCK):
    """Evidence of a development instance: it proves nothing, and stands where a hardware's would."""

    measurement: BareBytes32
    tcb: str
    quote: Annotated[Base64, said("measurement and report_data again, in base64", "AAAA")]


PublishedEvidence = StaticEvidence | MockEvidenceShape


class Key(Shape, Generic[E], frozen=True):
    """The key that open orders are sealed to, with its evidence."""

    escrow_public_key: BareBytes32
    evidence: Annotated[E, said("what binds the key; hold `report_data` against the key before you seal to it")]
    issued_at: Annotated[int, said("time of the answer, in Unix seconds", 1800000000)]


class ReleasedShape(Shape, frozen=True):
    """The data key of a claimed job's payload."""

    dek_sealed: Base64


class HandedOverShape(Shape, frozen=True):
    """Escrow keys for a peer."""

    keys_sealed: Base64
    key_count: int
    holder_release: int
