"""X25519 keys, sealed boxes (libsodium's `crypto_box_seal`), and keys derived by HKDF.

    sealed box = ephemeral public key (32) ‖ box(plaintext) (16 + length),
                 nonce = BLAKE2b-192(ephemeral public key ‖ recipient's public key)

Anyone can seal to a public key; a sealed box says nothing about who sealed it.
"""

import hashlib
import hmac
import os
from typing import Final, Self, TypeVar

import attrs
from nacl import bindings
from nacl.exceptions import CryptoError

from common.refusal import Refused

KEY_BYTES: Final = 32
SEAL_OVERHEAD: Final = 48

_P: Final = 2**255 - 19
# The u-coordinates of the points of order 1, 2, 4 and 8 (of the curve and of its twist). A shared secret with
# any of them is zero whatever the other side's secret is, so what is sealed to one can be read by everyone.
_LOW_ORDER: Final = frozenset(
    {
        0,
        1,
        _P - 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    }
)


@attrs.frozen
class PublicKey:
    """An X25519 public key that is safe to seal to. Refuses every encoding of a low-order point."""

    raw: bytes

    def __attrs_post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise Refused(f"an X25519 public key has {KEY_BYTES} bytes")
        # X25519 ignores the top bit and reduces modulo p, so each point has several encodings.
        u = (int.from_bytes(self.raw, "little") & (2**255 - 1)) % _P
        if u in _LOW_ORDER:
            raise Refused("this X25519 public key is a low-order point")


@attrs.frozen(repr=False)
class SecretKey:
    """An X25519 secret key. Prints as <SECRET>."""

    raw: bytes
    public: PublicKey = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise Refused(f"an X25519 secret key has {KEY_BYTES} bytes")
        object.__setattr__(self, "public", PublicKey(bindings.crypto_scalarmult_base(self.raw)))

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))

    def __repr__(self) -> str:
        return "<SECRET>"


def seal(public: PublicKey, plaintext: bytes) -> bytes:
    """A sealed box, 48 bytes longer than its plaintext."""
    return bindings.crypto_box_seal(plaintext, public.raw)


def open_sealed(secret: SecretKey, sealed: bytes) -> bytes | None:
    """What was sealed to this key, or None where it does not open."""
    if len(sealed) < SEAL_OVERHEAD:
        return None
    try:
        return bindings.crypto_box_seal_open(sealed, secret.public.raw, secret.raw)
    except CryptoError:
        return None


# Keys derived from other secrets: HKDF-SHA256 without salt, one label per purpose.
#
# The label opens the info, so a key for one purpose is never a key for another; what follows the label binds
# the key to one place on one chain. All fields after the label have fixed lengths, so no two infos coincide.

B = TypeVar("B", bound=bytes | bytearray)

DATA_KEY_LABEL: Final = b"svc-dek-v1"
RESULT_DATA_KEY_LABEL: Final = b"svc-result-v1"
RESULT_KEY_LABEL: Final = b"svc-result-key-v1"
ESCROW_KEY_LABEL: Final = b"svc-escrow-v1"

SEED_BYTES: Final = 32


def hkdf_sha256(secret: bytes | bytearray, info: bytes) -> bytes:
    """The first 32 bytes of HKDF-SHA256 with an empty salt (RFC 5869: one block of the expansion)."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def data_key(seed: bytes | bytearray, chain_id: int, job_registry: bytes, owner: bytes) -> bytes:
    """The key of a container's ciphertext.

    It is bound to the owner because containers are public: a stranger who posts someone's container under an
    order of his own gets, from an escrow that takes the owner from the chain, a key that opens nothing.
    """
    place = _place(chain_id, job_registry)
    return hkdf_sha256(_exactly(seed, SEED_BYTES), DATA_KEY_LABEL + place + _exactly(owner, 20))


def result_data_key(seed: bytes, chain_id: int, job_registry: bytes, job_id: bytes) -> bytes:
    """The key of a sealed result's ciphertext, bound to the job so that results cannot change places."""
    place = _place(chain_id, job_registry)
    return hkdf_sha256(_exactly(seed, SEED_BYTES), RESULT_DATA_KEY_LABEL + place + _exactly(job_id, 32))


def result_key_from_signature(signature: bytes) -> SecretKey:
    """The key that a wallet's results are sealed to, from its deterministic signature.

    The signature is taken with v as 27 or 28 only: the other spellings of v would silently be other keys.
    """
    if _exactly(signature, 65)[64] not in (27, 28):
        raise ValueError("the signature's v must be 27 or 28")
    return SecretKey(hkdf_sha256(signature, RESULT_KEY_LABEL))


def escrow_key(operator_key: bytes) -> SecretKey:
    """The key that open bids are sealed to, from an operator's 32-byte private key."""
    return SecretKey(hkdf_sha256(_exactly(operator_key, 32), ESCROW_KEY_LABEL))


def _place(chain_id: int, job_registry: bytes) -> bytes:
    return chain_id.to_bytes(32, "big") + _exactly(job_registry, 20)


def _exactly(raw: B, length: int) -> B:
    if len(raw) != length:
        raise ValueError(f"expected {length} bytes, got {len(raw)}")
    return raw
