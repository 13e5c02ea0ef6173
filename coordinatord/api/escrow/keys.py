"""Secret X25519 keys in wipeable memory. They are never printed.

Every escrow secret that outlives a request is a bytearray of this module, because Python's `bytes` cannot be wiped. Two
kinds of secrets are exceptions. Operator keys are text of the configuration, and HKDF derives `bytes` from these keys.
Payload keys exist as `bytes` for a moment, between their derivation and their sealing.
"""

from collections.abc import Iterable
from typing import Final, Self

# This module uses private members of PyNaCl, because its public functions use `bytes`, which cannot be wiped. A test
# lists these members.
from nacl._sodium import ffi, lib
from nacl.bindings import sodium_init

from common.box import KEY_BYTES, SEAL_OVERHEAD_BYTES, PublicKey
from common.key_derivation import escrow_key

sodium_init()

_OPEN_FAILED: Final = -1


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
    def from_operator_key(cls, operator_key: bytes) -> Self:
        return cls(bytearray(escrow_key(operator_key).raw))

    def open(self, sealed: bytes) -> bytearray | None:
        """Open a sealed box, or return None if it is not sealed to this key. The caller must wipe the result."""
        if len(sealed) < SEAL_OVERHEAD_BYTES:
            return None
        opened = bytearray(len(sealed) - SEAL_OVERHEAD_BYTES)
        outcome = lib.crypto_box_seal_open(
            ffi.from_buffer(opened), sealed, len(sealed), self.public.raw, ffi.from_buffer(self._secret)
        )
        return None if outcome == _OPEN_FAILED else opened

    def copy_secret(self) -> bytearray:
        """Return a copy of the secret, to seal in a handover message. The caller must wipe the copy."""
        return self._secret[:]

    def erase(self) -> None:
        """Wipe the secret. After that, the key opens no wraps."""
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
    """Seal a secret message to a public key. The message is not copied to `bytes`, which could not be wiped."""
    sealed = bytearray(len(message) + SEAL_OVERHEAD_BYTES)
    lib.crypto_box_seal(ffi.from_buffer(sealed), ffi.from_buffer(message), len(message), recipient.raw)
    return bytes(sealed)


def wipe(secret: bytearray) -> None:
    lib.sodium_memzero(ffi.from_buffer(secret), len(secret))
