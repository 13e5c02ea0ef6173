"""Evidence of an escrow about its key, and how the evidence is bound to the key.

    report_data      = sha256(public key (32) ‖ "svc-coordinator-escrow-v1")
    mock measurement = sha256("svc-mock-measurement-v1" ‖ release (2))

A client that seals to an escrow's key computes `report_data` again, so evidence made for another key does not fit. A
holder of escrow keys checks a peer's request for them in the same way, against the key that they will be sealed to.

The measurement names the software that runs, and is the key of its entry in the allowlist on the chain. A mock's
measurement names only its release, and proves nothing.
"""

import hashlib
from typing import Final

from common.box import PublicKey

STATIC: Final = "static-coordinator-v1"
MOCK: Final = "mock-coordinator-v1"

_REPORT_LABEL: Final = b"svc-coordinator-escrow-v1"
_MOCK_LABEL: Final = b"svc-mock-measurement-v1"


def report_data(public: PublicKey) -> bytes:
    """The 32 bytes that evidence for this key carries."""
    return hashlib.sha256(public.raw + _REPORT_LABEL).digest()


def mock_measurement(release: int) -> bytes:
    """What an instance in development mode says that it is."""
    return hashlib.sha256(_MOCK_LABEL + release.to_bytes(2, "big")).digest()
