"""The bodies of the escrow's answers. Its keys and hashes are written without 0x, as the specification has them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from coordinatord.service.escrow.evidence import AnnouncedKey

BareBytes32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]


class StaticEvidence(msgspec.Struct):
    type: Literal["static-coordinator-v1"]
    report_data: BareBytes32
    debug: bool
    release: int


class Key(msgspec.Struct):
    escrow_public_key: BareBytes32
    evidence: StaticEvidence
    issued_at: int


class Released(msgspec.Struct):
    dek_sealed: Base64


def key(announced: AnnouncedKey) -> Key:
    evidence = announced.evidence
    return Key(
        announced.public.raw.hex(),
        StaticEvidence("static-coordinator-v1", evidence.report_data.hex(), evidence.debug, evidence.release),
        announced.issued_at,
    )
