"""What an escrow says about a key, and how the saying is tied to it.

    report_data      = sha256(public key (32) ‖ "svc-coordinator-escrow-v1")
    mock measurement = sha256("svc-mock-measurement-v1" ‖ release (2))

A client that seals to an escrow's key computes report_data again: evidence that was made for another key does not fit.
So does the holder of keys that are asked for, with the key that they will be sealed to.

The measurement names what runs, and is the key of its entry in the allowlist on the chain. A mock's names its release
and nothing else, and proves nothing.
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
