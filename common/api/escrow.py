"""Shapes of the escrow's answers: its keys, their evidence, released payload keys and handovers.

Keys and hashes are written without 0x, as the specification has them.
"""

from typing import Annotated, Generic, TypeVar

from common.api.shapes import BareBytes32, Base64, Shape, described
from common.escrow_evidence import MOCK, STATIC

E = TypeVar("E")


class BoundEvidence(Shape, frozen=True):
    report_data: BareBytes32
    debug: bool
    release: int


class EvidenceShape(BoundEvidence, frozen=True):
    """Evidence of any type, as clients read it."""

    type: Annotated[str, described("kind of the evidence", STATIC)]


class StaticEvidence(BoundEvidence, frozen=True, tag_field="type", tag=STATIC):
    """Evidence of an escrow with its operator's key."""


class MockEvidenceShape(BoundEvidence, frozen=True, tag_field="type", tag=MOCK):
    """Evidence of a development instance, which proves nothing."""

    measurement: BareBytes32
    tcb: str
    quote: Annotated[Base64, described("measurement and report_data again, in base64", "AAAA")]


PublishedEvidence = StaticEvidence | MockEvidenceShape


class Key(Shape, Generic[E], frozen=True):
    """The key that open orders are sealed to, with its evidence."""

    escrow_public_key: BareBytes32
    evidence: Annotated[E, described("evidence for the key; compare `report_data` with the key before you seal to it")]
    issued_at: Annotated[int, described("time of the answer, in Unix seconds", 1800000000)]


class ReleasedShape(Shape, frozen=True):
    """The data key of a claimed job's payload."""

    dek_sealed: Base64


class HandedOverShape(Shape, frozen=True):
    """Escrow keys for a peer."""

    keys_sealed: Base64
    key_count: int
    holder_release: int
