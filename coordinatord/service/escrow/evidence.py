"""The evidence that an escrow gives for a key, as a value."""

import attrs

from common import escrow_evidence
from common.box import PublicKey


@attrs.frozen(slots=True)
class Evidence:
    type: str
    report_data: bytes
    debug: bool
    release: int


@attrs.frozen(slots=True)
class AnnouncedKey:
    """What GET /key tells."""

    public: PublicKey
    evidence: Evidence
    issued_at: int


def static_evidence(public: PublicKey, release: int) -> Evidence:
    return Evidence(escrow_evidence.STATIC, escrow_evidence.report_data(public), debug=False, release=release)
