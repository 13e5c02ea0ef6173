"""Evidence of an escrow for its public key, and its binding to that key.

    report_data      = sha256(public key (32) ‖ "svc-coordinator-escrow-v1")
    mock measurement = sha256("svc-mock-measurement-v1" ‖ release (2))

A client computes `report_data` again before it seals to an escrow's key, so evidence for another key does not match. A
holder of escrow keys checks a peer's request in the same way, against the key to which it will seal its answer.

The measurement identifies the running software, and is the key of its entry in the allowlist on the chain. A mock
measurement identifies only the release, and proves nothing.
"""

import hashlib
from typing import Final

from common.box import PublicKey

STATIC: Final = "static-coordinator-v1"
MOCK: Final = "mock-coordinator-v1"

_REPORT_LABEL: Final = b"svc-coordinator-escrow-v1"
_MOCK_LABEL: Final = b"svc-mock-measurement-v1"


def report_data(public: PublicKey) -> bytes:
    """Return the 32 bytes that evidence for this key must contain."""
    return hashlib.sha256(public.raw + _REPORT_LABEL).digest()


def mock_measurement(release: int) -> bytes:
    """Return the measurement of an instance in development mode."""
    return hashlib.sha256(_MOCK_LABEL + release.to_bytes(2, "big")).digest()
