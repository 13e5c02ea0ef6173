"""Shapes of the escrow. Its keys and hashes are written without 0x, as the specification has them."""

from typing import Generic, TypeVar

from common.escrow import MOCK, STATIC
from common.wire.shapes import BareBytes32, Base64, Shape

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
