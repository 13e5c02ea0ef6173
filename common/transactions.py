"""EIP-1559 transactions: encoded, signed and hashed. The access list is always empty.

    raw  = 0x02 ‖ rlp([chain id, nonce, tip, fee cap, gas, to, value, data, [], y parity, r, s])
    hash = keccak256(raw)

What is signed is the same without the last three.
"""

import attrs

from common.keccak import keccak256
from common.secp256k1 import Wallet

_TYPE = b"\x02"
_EMPTY_LIST = b"\xc0"


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
                _integer(self.chain_id),
                _integer(self.nonce),
                _integer(self.max_priority_fee_per_gas),
                _integer(self.max_fee_per_gas),
                _integer(self.gas),
                b"\x80" if self.to is None else b"\x94" + self.to,
                _integer(self.value),
                _string(self.data),
                _EMPTY_LIST,
            )
        )
        compact, parity = wallet.sign_recoverable(keccak256(_TYPE + _header(0xC0, len(fields)) + fields))
        signature = (
            (b"\x01" if parity else b"\x80") + _string(compact[:32].lstrip(b"\0")) + _string(compact[32:].lstrip(b"\0"))
        )
        raw = _TYPE + _header(0xC0, len(fields) + len(signature)) + fields + signature
        return SignedTransaction(raw=raw, hash=keccak256(raw))


def _integer(value: int) -> bytes:
    if 0 < value < 0x80:
        return value.to_bytes(1, "big")
    encoded = value.to_bytes((value.bit_length() + 7) // 8, "big")  # OverflowError below zero
    return _string(encoded)


def _string(value: bytes) -> bytes:
    if len(value) == 1 and value[0] < 0x80:
        return value
    return _header(0x80, len(value)) + value


def _header(offset: int, length: int) -> bytes:
    if length < 56:
        return (offset + length).to_bytes(1, "big")
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return (offset + 55 + len(size)).to_bytes(1, "big") + size
