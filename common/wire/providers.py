"""Shapes of the answers that providers get: ops, simulated claims, published asks, the keys and releases of escrow."""

from typing import Generic, Literal, TypeVar

from common.escrow import MOCK, STATIC
from common.wire.shapes import BareBytes32, Base64, Bytes32, Digits, HexBytes, Omittable, Shape


class OpDoneShape(Shape, frozen=True):
    tx_hash: Bytes32
    status: Literal["success"]
    block_number: Digits
    result_cid: Omittable[str] = None


class OpRefused(Shape, frozen=True):
    """`reason` is the contract error's name; `unknown` comes with the revert data in `raw`."""

    ok: Literal[False]
    reason: str
    raw: Omittable[HexBytes] = None


class ClaimAccepted(Shape, frozen=True):
    ok: Literal[True]


class ClaimRefused(Shape, frozen=True):
    ok: Literal[False]
    reason: str


class PublishedShape(Shape, frozen=True):
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

    type: str


class StaticEvidence(BoundEvidence, frozen=True, tag_field="type", tag=STATIC):
    pass


class MockEvidenceShape(BoundEvidence, frozen=True, tag_field="type", tag=MOCK):
    measurement: BareBytes32
    tcb: str
    quote: Base64


PublishedEvidence = StaticEvidence | MockEvidenceShape


class Key(Shape, Generic[E], frozen=True):
    escrow_public_key: BareBytes32
    evidence: E
    issued_at: int


class ReleasedShape(Shape, frozen=True):
    dek_sealed: Base64


class HandedOverShape(Shape, frozen=True):
    keys_sealed: Base64
    key_count: int
    holder_release: int
