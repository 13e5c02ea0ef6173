"""Signatures over secp256k1: recovery of the signer's address, and a wallet that signs.

It speaks to libsecp256k1 through coincurve's cffi binding and keeps the C structures of each thread, because
allocating them anew costs as much as all the rest that Python does here. cffi releases the GIL while the
library works, so several threads check signatures side by side.

    signature (65 bytes) = r (32) ‖ s (32) ‖ v (1), v = 27 + parity of the nonce point's y
"""

import threading
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, TypeAlias

import attrs
from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT

from common.keccak import keccak256
from common.native.library import LIBRARY
from common.refusal import Refused

SIGNATURE_LENGTH: Final = 65

_HALF_ORDER: Final = bytes.fromhex("7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0")

# The library only reads the context here, so all threads share it.
_CONTEXT: Final = GLOBAL_CONTEXT.ctx
_UNCOMPRESSED: Final = lib.SECP256K1_EC_UNCOMPRESSED
_NULL: Final = ffi.NULL
_recover: Final = lib.secp256k1_ecdsa_recover
_parse: Final = lib.secp256k1_ecdsa_recoverable_signature_parse_compact
_serialize_key: Final = lib.secp256k1_ec_pubkey_serialize
_sign: Final = lib.secp256k1_ecdsa_sign_recoverable
_serialize: Final = lib.secp256k1_ecdsa_recoverable_signature_serialize_compact


class _Scratch(threading.local):
    """The C structures of one thread, overwritten by every call."""

    def __init__(self) -> None:
        signature = ffi.new("secp256k1_ecdsa_recoverable_signature *")
        key = ffi.new("secp256k1_pubkey *")
        key_bytes = ffi.new("unsigned char[65]")
        key_length = ffi.new("size_t *", 65)
        # All of 0x04 ‖ x ‖ y but its first byte, which the address does not cover.
        point = ffi.buffer(key_bytes + 1, 64)
        # Tuples, because every look-up in a thread-local is paid for.
        self.for_recovery = signature, key, key_bytes, key_length, point
        compact = ffi.new("unsigned char[64]")
        self.for_signing = signature, compact, ffi.buffer(compact, 64), ffi.new("int *")


_scratch: Final = _Scratch()


def recover(digest: bytes, signature: bytes) -> bytes | None:
    """The 20-byte address whose key signed `digest`, or None when there is no such signature.

    The accepted form is the contracts': 65 bytes, v 27 or 28, r and s in [1, n), s in the lower half.
    """
    if len(digest) != 32:
        raise ValueError("a digest is 32 bytes")
    if len(signature) != SIGNATURE_LENGTH:
        return None
    parity = signature[64] - 27
    # The library takes the upper half of s too, which would give every signature a second spelling.
    if parity not in {0, 1} or signature[32:64] > _HALF_ORDER:
        return None
    parsed, key, key_bytes, key_length, point = _scratch.for_recovery
    # Parsing refuses r beyond the order; recovery refuses zeros, and an r that is the x of no point.
    if not _parse(_CONTEXT, parsed, signature, parity) or not _recover(_CONTEXT, key, parsed, digest):
        return None
    _serialize_key(_CONTEXT, key_bytes, key_length, key, _UNCOMPRESSED)
    return keccak256(point)[12:]


def _read_secret(secret: bytes) -> bytes:
    if len(secret) != 32 or not lib.secp256k1_ec_seckey_verify(_CONTEXT, secret):
        raise Refused("a private key must be 32 bytes, above zero and below the order of secp256k1")
    return secret


def _hidden(_: object) -> str:
    return "<SECRET>"


@attrs.frozen(slots=True)
class Wallet:
    """A private key and its address. Refuses bytes that are no private key; never prints the key."""

    _secret: bytes = attrs.field(converter=_read_secret, repr=_hidden)
    address: bytes = attrs.field(init=False, eq=False, repr=lambda address: "0x" + address.hex())

    def __attrs_post_init__(self) -> None:
        _, key, key_bytes, key_length, point = _scratch.for_recovery
        lib.secp256k1_ec_pubkey_create(_CONTEXT, key, self._secret)
        _serialize_key(_CONTEXT, key_bytes, key_length, key, _UNCOMPRESSED)
        object.__setattr__(self, "address", keccak256(point)[12:])

    def sign(self, digest: bytes) -> bytes:
        """r ‖ s ‖ v with v 27 or 28 and low s; the same digest gives the same bytes (RFC 6979)."""
        compact, parity = self.sign_recoverable(digest)
        return compact + (b"\x1c" if parity else b"\x1b")

    def sign_transaction(self, fields: bytes) -> tuple[bytes, bytes] | None:
        """(the EIP-1559 transaction of these fields, its hash), in one call; None where that was not compiled."""
        return None if LIBRARY is None else LIBRARY.sign_transaction(self._secret, fields)

    def sign_recoverable(self, digest: bytes) -> tuple[bytes, int]:
        """(r ‖ s, y parity), as transactions carry them."""
        if len(digest) != 32:
            raise ValueError("a digest is 32 bytes")
        signature, compact, compact_bytes, parity = _scratch.for_signing
        _sign(_CONTEXT, signature, digest, self._secret, _NULL, _NULL)
        _serialize(_CONTEXT, compact, parity, signature)
        return compact_bytes[:], parity[0]


# Recovery of the signers of many typed structs in one call.
#
# The work is done by `native/signatures.c` where it could be compiled when the package was built, and else by the loop
# below, which answers the same at a little more cost. What the compiled one adds is that it holds the interpreter's
# lock for none of it, so that threads which check signatures leave each other and the event loop alone.

# prefix (34) ‖ signature (65) ‖ length of the struct (4), in front of the struct
_HEAD: Final = Struct(f"<34s{SIGNATURE_LENGTH}sI")
_NO_SIGNATURE: Final = bytes(SIGNATURE_LENGTH)  # recovers to nobody

Signers: TypeAlias = Callable[[Sequence[bytes]], list[bytes | None]]


def signed(prefix: bytes, struct: bytes, signature: bytes) -> bytes:
    """One question: `struct` is packed, `prefix` is 0x19 ‖ 0x01 ‖ the domain's separator."""
    return _HEAD.pack(prefix, signature if len(signature) == SIGNATURE_LENGTH else _NO_SIGNATURE, len(struct)) + struct


def signers_by_loop(questions: Sequence[bytes]) -> list[bytes | None]:
    answers = []
    for question in questions:
        prefix, signature, _ = _HEAD.unpack_from(question)
        answers.append(recover(keccak256(prefix + keccak256(question[_HEAD.size :])), signature))
    return answers


signers: Final[Signers] = LIBRARY.signers if LIBRARY is not None else signers_by_loop
"""The addresses that signed, in order; None for a signature in no accepted form (see `secp256k1.recover`)."""
