"""Compute keccak-256 with the package safe-pysha3 (0.7 µs for 66 bytes).

On macOS and Windows, where safe-pysha3 has no wheels, fall back to pycryptodome, which is about ten times slower.
"""

from typing import Any

try:
    import sha3
except ModuleNotFoundError:
    from Crypto.Hash import keccak

    sha3 = None


class _PycryptodomeKeccak256:
    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        self._hash: Any = keccak.new(data=memoryview(data), digest_bits=256, update_after_digest=True)

    def update(self, data: bytes | bytearray | memoryview) -> None:
        self._hash.update(memoryview(data))

    def digest(self) -> bytes:
        return bytes(self._hash.digest())


Keccak256: Any = (
    _PycryptodomeKeccak256 if sha3 is None else sha3.keccak_256
)  # hash of several pieces: .update(data), .digest()


def keccak256(data: bytes | bytearray | memoryview) -> bytes:
    digest: bytes = Keccak256(data).digest()
    return digest
