"""Encode, sign and hash EIP-1559 transactions with an empty access list.

    raw  = 0x02 ‖ rlp([chain id, nonce, tip, fee cap, gas, to, value, data, [], y parity, r, s])
    hash = keccak256(raw)

The signature covers the same list without its last three items.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from common.keccak import keccak256
from common.secp256k1 import Wallet

TYPE: Final = b"\x02"
_EMPTY_LIST: Final = b"\xc0"


class SignedTransaction(NamedTuple):
    raw: bytes
    hash: bytes


class Transaction(NamedTuple):
    """Unsigned transaction. `to` is None for a deployment. Amounts are in wei.

    A tuple, because creating a frozen class takes as long as encoding the transaction.
    """

    chain_id: int
    nonce: int
    max_priority_fee_per_gas: int
    max_fee_per_gas: int
    gas: int
    to: bytes | None
    value: int
    data: bytes

    def sign(self, wallet: Wallet) -> SignedTransaction:
        """Sign and encode. The same transaction and wallet always give the same bytes."""
        fields = self._unsigned()
        compact, parity = wallet.sign_recoverable(_digest(fields))
        return _signed(fields, parity, compact[:32], compact[32:])

    @property
    def digest(self) -> bytes:
        """Return the hash that the signature covers."""
        return _digest(self._unsigned())

    def with_signature(self, parity: int, r: bytes, s: bytes) -> SignedTransaction:
        """Encode a transaction that was signed elsewhere."""
        return _signed(self._unsigned(), parity, r, s)

    def _unsigned(self) -> bytes:
        chain_id, nonce, tip, fee_cap, gas, to, value, data = self
        if to is not None and len(to) != 20:
            raise ValueError("to must be 20 bytes, or None for a deployment")
        return b"".join(
            (
                _integers(chain_id),
                _integer(nonce),
                _integers(tip, fee_cap),
                _integer(gas),
                b"\x80" if to is None else b"\x94" + to,
                _integers(value) if value else b"\x80",
                b"" if len(data) == 1 and data[0] < 0x80 else _header(0x80, len(data)),
                data,
                _EMPTY_LIST,
            )
        )


def _digest(fields: bytes) -> bytes:
    return keccak256(_head(len(fields)) + fields)


def _signed(fields: bytes, parity: int, r: bytes, s: bytes) -> SignedTransaction:
    # One signature in 128 has a scalar shorter than 32 bytes.
    signature = (b"\x01" if parity else b"\x80") + _string(r.lstrip(b"\0")) + _string(s.lstrip(b"\0"))
    raw = _head(len(fields) + len(signature)) + fields + signature
    return SignedTransaction(raw, keccak256(raw))


# RLP, as in `common.inclusion.rlp`, but faster: encodings of repeated values are cached.
_BYTES: Final = [bytes([value]) for value in range(256)]


def _integer(value: int) -> bytes:
    if 0 < value < 0x80:
        return _BYTES[value]
    length = (value.bit_length() + 7) >> 3
    return _BYTES[0x80 + length] + value.to_bytes(length, "big")  # OverflowError below zero


@lru_cache(maxsize=64)
def _integers(*values: int) -> bytes:
    """Encode integers that rarely differ between relays."""
    return b"".join(map(_integer, values))


def _string(value: bytes) -> bytes:
    length = len(value)
    if length == 1 and value[0] < 0x80:
        return value
    return _header(0x80, length) + value


@lru_cache(maxsize=1024)
def _head(list_length: int) -> bytes:
    return TYPE + _header(0xC0, list_length)


# Transactions of the same op have few lengths.
@lru_cache(maxsize=1024)
def _header(kind: int, length: int) -> bytes:
    if length < 56:
        return _BYTES[kind + length]
    size = (length.bit_length() + 7) >> 3
    return _BYTES[kind + 55 + size] + length.to_bytes(size, "big")
