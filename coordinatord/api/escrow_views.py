"""The bodies of the escrow's answers. Its keys and hashes are written without 0x, as the specification has them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from common import escrow_evidence
from coordinatord.service.escrow import evidence as evidence_values
from coordinatord.service.escrow.evidence import AnnouncedKey, Evidence

BareBytes32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]


class StaticEvidence(msgspec.Struct, tag_field="type", tag=escrow_evidence.STATIC):
    report_data: BareBytes32
    debug: bool
    release: int


class MockEvidence(msgspec.Struct, tag_field="type", tag=escrow_evidence.MOCK):
    report_data: BareBytes32
    debug: bool
    release: int
    measurement: BareBytes32
    tcb: str
    quote: Base64


class Key(msgspec.Struct):
    escrow_public_key: BareBytes32
    evidence: StaticEvidence | MockEvidence
    issued_at: int


class Released(msgspec.Struct):
    dek_sealed: Base64


class HandedOver(msgspec.Struct):
    keys_sealed: Base64
    key_count: int
    holder_release: int


def key(announced: AnnouncedKey) -> Key:
    return Key(announced.public.raw.hex(), _evidence(announced.evidence), announced.issued_at)


def _evidence(evidence: Evidence) -> StaticEvidence | MockEvidence:
    bound = evidence.report_data.hex()
    if isinstance(evidence, evidence_values.MockEvidence):
        return MockEvidence(
            bound, evidence.debug, evidence.release, evidence.measurement.hex(), evidence.tcb, evidence.quote
        )
    return StaticEvidence(bound, evidence.debug, evidence.release)
