"""Bind an escrow's evidence to its public key.

    report_data      = sha256(public key (32) ‖ "svc-coordinator-escrow-v1")
    mock measurement = sha256("svc-mock-measurement-v1" ‖ release (2))

Before a client seals to an escrow's key, the client computes `report_data` itself, so evidence for another key does not
match. Before an escrow instance hands over its keys, it checks the evidence for the receiver's key in the same way.

A measurement identifies the running software. The allowlist on the chain lists the accepted measurements. A mock
measurement identifies only the release, and proves nothing.
"""

import hashlib
from typing import Final

from common.box import PublicKey

STATIC_EVIDENCE_TYPE: Final = "static-coordinator-v1"
MOCK_EVIDENCE_TYPE: Final = "mock-coordinator-v1"

_REPORT_DATA_LABEL: Final = b"svc-coordinator-escrow-v1"
_MOCK_MEASUREMENT_LABEL: Final = b"svc-mock-measurement-v1"


def report_data(public: PublicKey) -> bytes:
    """Return the 32 bytes that evidence for this key must contain."""
    return hashlib.sha256(public.raw + _REPORT_DATA_LABEL).digest()


def mock_measurement(release: int) -> bytes:
    """Return the measurement of an instance in development mode."""
    return hashlib.sha256(_MOCK_MEASUREMENT_LABEL + release.to_bytes(2, "big")).digest()
