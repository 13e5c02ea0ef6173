"""Sign with secp256k1 keys, and recover a signer's address from a signature.

libsecp256k1 does the arithmetic, through btclib's binding. The binding releases the GIL during each call.

    signature (65 bytes) = r (32) ‖ s (32) ‖ v (1), v = 27 + parity of the nonce point's y
"""

from typing import Final

import attrs
from btclib_secp256k1 import keys, recovery

from common.keccak import keccak256
from common.refusal import Refused

SIGNATURE_LENGTH: Final = 65

_HALF_ORDER: Final = bytes.fromhex("7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0")


def recover_address(digest: bytes, signature: bytes) -> bytes | None:
    """Return the 20-byte address of the key that signed `digest`, or None for an invalid signature.

    Like the contracts, accept only 65 bytes with v 27 or 28, r and s in [1, n), and s in the lower half.
    """
    if len(digest) != 32:
        raise ValueError("a digest must have 32 bytes")
    if len(signature) != SIGNATURE_LENGTH:
        return None
    parity = signature[64] - 27
    # The library also accepts s in the upper half, which would give every signature a second valid form.
    if parity not in {0, 1} or signature[32:64] > _HALF_ORDER:
        return None
    try:
        key = recovery.recover(digest, signature[:64], parity, compressed=False)
    except ValueError:
        return None
    return _address_of_key(key)


def _address_of_key(key: bytes) -> bytes:
    """Return the address of an uncompressed public key, 0x04 ‖ x ‖ y."""
    return keccak256(key[1:])[12:]


def _hide_secret(_: object) -> str:
    return "<SECRET>"


@attrs.frozen(slots=True)
class Wallet:
    """A private key and its address. The key prints as <SECRET>. Construction refuses an invalid key."""

    _secret: bytes = attrs.field(repr=_hide_secret)
    address: bytes = attrs.field(init=False, eq=False, repr=lambda address: "0x" + address.hex())

    def __attrs_post_init__(self) -> None:
        try:
            key = keys.pubkey_from_prvkey(self._secret, compressed=False)
        except ValueError:
            raise Refused("a private key must be 32 bytes, above zero and below the order of secp256k1") from None
        object.__setattr__(self, "address", _address_of_key(key))

    def sign(self, digest: bytes) -> bytes:
        """Return r ‖ s ‖ v with v 27 or 28 and low s. The same digest gives the same bytes (RFC 6979)."""
        compact, parity = self.sign_recoverable(digest)
        return compact + (b"\x1c" if parity else b"\x1b")

    def sign_recoverable(self, digest: bytes) -> tuple[bytes, int]:
        """Return (r ‖ s, y parity), the form that transactions use."""
        if len(digest) != 32:
            raise ValueError("a digest must have 32 bytes")
        # Do not verify the new signature: this would triple the time, and nodes and contracts verify it anyway.
        return recovery.sign(digest, self._secret, verify=False)
