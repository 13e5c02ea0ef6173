"""The evidence that an escrow gives for a key, as a value."""

import attrs

from common import escrow_evidence
from common.box import PublicKey
from common.escrow_evidence import mock_measurement, report_data
from common.scalars import base64_of


@attrs.frozen(slots=True)
class Evidence:
    type: str
    report_data: bytes
    debug: bool
    release: int


@attrs.frozen(slots=True)
class MockEvidence(Evidence):
    """What a development instance says of itself in addition; the real thing would be signed by its hardware."""

    measurement: bytes
    tcb: str
    quote: str


@attrs.frozen(slots=True)
class AnnouncedKey:
    """What GET /key tells."""

    public: PublicKey
    evidence: Evidence
    issued_at: int


def static_evidence(public: PublicKey, release: int) -> Evidence:
    return Evidence(escrow_evidence.STATIC, report_data(public), debug=False, release=release)


def mock_evidence(public: PublicKey, release: int) -> MockEvidence:
    """The quote repeats measurement and report_data: a stand-in that nobody should take for a proof."""
    measurement, bound = mock_measurement(release), report_data(public)
    return MockEvidence(
        escrow_evidence.MOCK,
        bound,
        debug=False,
        release=release,
        measurement=measurement,
        tcb="mock",
        quote=base64_of(measurement + bound),
    )
