"""Secret X25519 keys in wipeable memory. They are never printed.

Every escrow secret that outlives a request is a bytearray of this module, because Python's `bytes` cannot be wiped. Two
secrets cannot be wiped: an operator key, and its derivation by HKDF, are text of the configuration. A payload key
exists as `bytes` for a moment, between its derivation and its sealing.
"""

from collections.abc import Iterable
from typing import Final, Self

# Private members of PyNaCl: its public functions take and return `bytes`, which cannot be wiped. A test names them.
from nacl._sodium import ffi, lib
from nacl.bindings import sodium_init

from common.box import KEY_BYTES, SEAL_OVERHEAD, PublicKey
from common.key_derivation import escrow_key

sodium_init()

_FAILED: Final = -1


class KeyPair:
    """Key pair. Its repr shows only the public key."""

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytearray) -> None:
        """Take ownership of `secret`, which is wiped with this key."""
        if len(secret) != KEY_BYTES:
            raise ValueError(f"an X25519 secret key must have {KEY_BYTES} bytes")
        self._secret = secret
        public = bytearray(KEY_BYTES)
        lib.crypto_scalarmult_base(ffi.from_buffer(public), ffi.from_buffer(secret))
        self.public = PublicKey(bytes(public))

    @classmethod
    def generate(cls) -> Self:
        secret = bytearray(KEY_BYTES)
        lib.randombytes(ffi.from_buffer(secret), KEY_BYTES)
        return cls(secret)

    @classmethod
    def of_operator(cls, operator_key: bytes) -> Self:
        return cls(bytearray(escrow_key(operator_key).raw))

    def open(self, sealed: bytes) -> bytearray | None:
        """Open a sealed box, or return None if it is not sealed to this key. The caller must wipe the result."""
        if len(sealed) < SEAL_OVERHEAD:
            return None
        opened = bytearray(len(sealed) - SEAL_OVERHEAD)
        outcome = lib.crypto_box_seal_open(
            ffi.from_buffer(opened), sealed, len(sealed), self.public.raw, ffi.from_buffer(self._secret)
        )
        return None if outcome == _FAILED else opened

    def copy_secret(self) -> bytearray:
        """Return a copy of the secret, to seal in a handover message. The caller must wipe the copy."""
        return self._secret[:]

    def erase(self) -> None:
        """Wipe the secret. The key opens nothing afterwards."""
        wipe(self._secret)

    def __repr__(self) -> str:
        return f"<escrow key {self.public.raw.hex()}>"


def open_with_any(keys: Iterable[KeyPair], sealed: bytes) -> bytearray | None:
    """Open a sealed box with the first key that fits. A sealed box does not name its recipient."""
    for key in keys:
        opened = key.open(sealed)
        if opened is not None:
            return opened
    return None


def seal_secret(recipient: PublicKey, message: bytearray) -> bytes:
    """Seal a message that must not pass through `bytes`."""
    sealed = bytearray(len(message) + SEAL_OVERHEAD)
    lib.crypto_box_seal(ffi.from_buffer(sealed), ffi.from_buffer(message), len(message), recipient.raw)
    return bytes(sealed)


def wipe(secret: bytearray) -> None:
    lib.sodium_memzero(ffi.from_buffer(secret), len(secret))
