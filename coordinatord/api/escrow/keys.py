"""Secret X25519 keys in memory of our own: readable by libsodium, wiped when they are erased, shown by nothing.

Every secret of the escrow that lives longer than one request is in a bytearray here: Python's `bytes` cannot be wiped.
Two things cannot be wiped. An operator key, and what HKDF makes of it: it is text of the configuration. A payload key
between its derivation and its sealing: it lives for a moment.
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
    """A key pair. Prints as its public half."""

    __slots__ = ("_secret", "public")

    def __init__(self, secret: bytearray) -> None:
        """Takes `secret` over: it is wiped with this key."""
        if len(secret) != KEY_BYTES:
            raise ValueError(f"an X25519 secret key has {KEY_BYTES} bytes")
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
        """Open what was sealed to this key; None where it does not open. The caller wipes it."""
        if len(sealed) < SEAL_OVERHEAD:
            return None
        opened = bytearray(len(sealed) - SEAL_OVERHEAD)
        outcome = lib.crypto_box_seal_open(
            ffi.from_buffer(opened), sealed, len(sealed), self.public.raw, ffi.from_buffer(self._secret)
        )
        return None if outcome == _FAILED else opened

    def copy_secret(self) -> bytearray:
        """For a message that is sealed at once. Whoever gets it wipes it."""
        return self._secret[:]

    def erase(self) -> None:
        """Wipes the secret; the key opens nothing any more."""
        wipe(self._secret)

    def __repr__(self) -> str:
        return f"<escrow key {self.public.raw.hex()}>"


def open_with_any(keys: Iterable[KeyPair], sealed: bytes) -> bytearray | None:
    """A sealed box does not tell whom it is for: the keys are tried in their order."""
    for key in keys:
        opened = key.open(sealed)
        if opened is not None:
            return opened
    return None


def seal_secret(recipient: PublicKey, message: bytearray) -> bytes:
    """A sealed box of what must not pass through `bytes`."""
    sealed = bytearray(len(message) + SEAL_OVERHEAD)
    lib.crypto_box_seal(ffi.from_buffer(sealed), ffi.from_buffer(message), len(message), recipient.raw)
    return bytes(sealed)


def wipe(secret: bytearray) -> None:
    lib.sodium_memzero(ffi.from_buffer(secret), len(secret))
