"""Shapes of the escrow's responses: public key, evidence, released data keys and handovers of escrow keys.

In these responses, keys and hashes are hex without 0x, as the specification requires.
"""

from typing import Annotated, Generic, TypeVar

from common.api.shapes import BareBytes32, Base64, Shape, described
from common.escrow_evidence import MOCK_EVIDENCE_TYPE, STATIC_EVIDENCE_TYPE

E = TypeVar("E")


class BoundEvidence(Shape, frozen=True):
    report_data: BareBytes32
    debug: bool
    release: int


class EvidenceShape(BoundEvidence, frozen=True):
    """Fields that evidence of every type has. Clients parse evidence as this shape."""

    type: Annotated[str, described("kind of the evidence", STATIC_EVIDENCE_TYPE)]


class StaticEvidence(BoundEvidence, frozen=True, tag_field="type", tag=STATIC_EVIDENCE_TYPE):
    """Evidence of an escrow whose operator keeps the keys, without a trusted execution environment."""


class MockEvidenceShape(BoundEvidence, frozen=True, tag_field="type", tag=MOCK_EVIDENCE_TYPE):
    """Evidence of a development instance, which proves nothing."""

    measurement: BareBytes32
    tcb: str
    quote: Annotated[Base64, described("measurement and report_data, in base64", "AAAA")]


PublishedEvidence = StaticEvidence | MockEvidenceShape


class Key(Shape, Generic[E], frozen=True):
    """Public key to which clients seal open orders, with its evidence."""

    escrow_public_key: BareBytes32
    evidence: Annotated[E, described("evidence for the key; compare `report_data` with the key before you seal to it")]
    issued_at: Annotated[int, described("time of the response, in Unix seconds", 1800000000)]


class ReleasedShape(Shape, frozen=True):
    """Data key of a claimed job's payload, sealed to the provider."""

    dek_sealed: Base64


class HandedOverShape(Shape, frozen=True):
    """Escrow keys, sealed to another instance of the escrow."""

    keys_sealed: Base64
    key_count: int
    holder_release: int
