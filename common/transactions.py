"""EIP-1559 transactions: encoded, signed and hashed. The access list is always empty.

    raw  = 0x02 ‖ rlp([chain id, nonce, tip, fee cap, gas, to, value, data, [], y parity, r, s])
    hash = keccak256(raw)

What is signed is the same without the last three.
"""

from functools import lru_cache
from typing import Final

import attrs

from common.keccak import keccak256
from common.secp256k1 import Wallet

_TYPE: Final = b"\x02"
_EMPTY_LIST: Final = b"\xc0"


@attrs.frozen(slots=True)
class SignedTransaction:
    raw: bytes
    hash: bytes


def _to(_: object, __: object, value: bytes | None) -> None:
    if value is not None and len(value) != 20:
        raise ValueError("to must be 20 bytes, or None for a deployment")


@attrs.frozen(slots=True)
class Transaction:
    """`to` is None for a deployment. Amounts are in wei."""

    chain_id: int
    nonce: int
    max_priority_fee_per_gas: int
    max_fee_per_gas: int
    gas: int
    to: bytes | None = attrs.field(validator=_to)
    value: int
    data: bytes = attrs.field(repr=False)

    def sign(self, wallet: Wallet) -> SignedTransaction:
        """Deterministic: the same transaction and wallet give the same bytes."""
        fields = b"".join(
            (
                _repeated(self.chain_id),
                _integer(self.nonce),
                _repeated(self.max_priority_fee_per_gas),
                _repeated(self.max_fee_per_gas),
                _integer(self.gas),
                b"\x80" if self.to is None else b"\x94" + self.to,
                _repeated(self.value),
                _string(self.data),
                _EMPTY_LIST,
            )
        )
        compact, parity = wallet.sign_recoverable(keccak256(_TYPE + _list_header(len(fields)) + fields))
        r, s = compact[:32], compact[32:]
        if not (r[0] and s[0]):  # of 128 signatures one has a shorter scalar
            r, s = r.lstrip(b"\0"), s.lstrip(b"\0")
        signature = (b"\x01" if parity else b"\x80") + _string(r) + _string(s)
        raw = _TYPE + _list_header(len(fields) + len(signature)) + fields + signature
        return SignedTransaction(raw=raw, hash=keccak256(raw))


# RLP: a byte below 0x80 is itself; a string of up to 55 bytes has a header of one byte, 0x80 + its length. A
# longer one, or a list, has 0xb7 or 0xf7 + the length of its length, and its length. Integers are strings
# without leading zeros.
_BYTES: Final = [bytes([value]) for value in range(256)]


def _integer(value: int) -> bytes:
    if 0 < value < 0x80:
        return _BYTES[value]
    length = (value.bit_length() + 7) >> 3
    return _BYTES[0x80 + length] + value.to_bytes(length, "big")  # OverflowError below zero


# What is mostly the same from one relay to the next.
_repeated: Final = lru_cache(maxsize=64)(_integer)


def _string(value: bytes) -> bytes:
    length = len(value)
    if length == 1 and value[0] < 0x80:
        return value
    if length < 56:
        return _BYTES[0x80 + length] + value
    return _long_header(0xB7, length) + value


def _list_header(length: int) -> bytes:
    return _BYTES[0xC0 + length] if length < 56 else _long_header(0xF7, length)


def _long_header(offset: int, length: int) -> bytes:
    size = (length.bit_length() + 7) >> 3
    return _BYTES[offset + size] + length.to_bytes(size, "big")
