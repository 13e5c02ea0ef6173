"""What an escrow says about a key, and how the saying is tied to it.

    report_data = sha256(public key (32) ‖ "svc-coordinator-escrow-v1")

A client that seals to an escrow's key computes it again: evidence that was made for another key does not fit.
"""

import hashlib
from typing import Final

from common.box import PublicKey

STATIC: Final = "static-coordinator-v1"
MOCK: Final = "mock-coordinator-v1"

_LABEL: Final = b"svc-coordinator-escrow-v1"


def report_data(public: PublicKey) -> bytes:
    """The 32 bytes that evidence for this key carries."""
    return hashlib.sha256(public.raw + _LABEL).digest()
