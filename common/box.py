"""X25519 keys and sealed boxes (libsodium's `crypto_box_seal`).

    sealed box = ephemeral public key (32) ‖ box(plaintext) (16 + length),
                 nonce = BLAKE2b-192(ephemeral public key ‖ recipient's public key)

Anyone can seal to a public key. A sealed box does not identify its sender.
"""

import os
from typing import Final, Self

import attrs
from nacl import bindings
from nacl.exceptions import CryptoError

from common.refusal import Refused

KEY_BYTES: Final = 32
SEAL_OVERHEAD_BYTES: Final = 48

_FIELD_PRIME: Final = 2**255 - 19
# u-coordinates of the points of order 1, 2, 4 and 8 on the curve and its twist. As a public key, such a point makes the
# shared secret zero, so anyone could open a box that is sealed to it.
_LOW_ORDER_POINTS: Final = frozenset(
    {
        0,
        1,
        _FIELD_PRIME - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)


@attrs.frozen
class PublicKey:
    """X25519 public key. Construction refuses every encoding of a low-order point."""

    raw: bytes

    def __attrs_post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise Refused(f"an X25519 public key must have {KEY_BYTES} bytes")
        # X25519 ignores the top bit and reduces modulo p, so each point has several encodings.
        u = (int.from_bytes(self.raw, "little") & (2**255 - 1)) % _FIELD_PRIME
        if u in _LOW_ORDER_POINTS:
            raise Refused("an X25519 public key must not be a low-order point")


@attrs.frozen(repr=False)
class SecretKey:
    """X25519 secret key. Prints as <SECRET>."""

    raw: bytes
    public: PublicKey = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise Refused(f"an X25519 secret key must have {KEY_BYTES} bytes")
        object.__setattr__(self, "public", PublicKey(bindings.crypto_scalarmult_base(self.raw)))

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    def __repr__(self) -> str:
        return "<SECRET>"


def seal(public: PublicKey, plaintext: bytes) -> bytes:
    """Return a sealed box, 48 bytes longer than the plaintext."""
    return bindings.crypto_box_seal(plaintext, public.raw)


def open_sealed(secret: SecretKey, sealed: bytes) -> bytes | None:
    """Return the plaintext of a sealed box, or None if this key does not open the box."""
    if len(sealed) < SEAL_OVERHEAD_BYTES:
        return None
    try:
        return bindings.crypto_box_seal_open(sealed, secret.public.raw, secret.raw)
    except CryptoError:
        return None
