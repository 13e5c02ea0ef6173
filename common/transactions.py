"""Encode, sign and hash EIP-1559 transactions with an empty access list.

    raw  = 0x02 ‖ rlp([chain id, nonce, tip, fee cap, gas, to, value, data, [], y parity, r, s])
    hash = keccak256(raw)

The signature covers the same list without its last three items.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from common.keccak import keccak256
from common.secp256k1 import Wallet

EIP1559_TYPE: Final = b"\x02"
_EMPTY_LIST: Final = b"\xc0"


class SignedTransaction(NamedTuple):
    raw: bytes
    hash: bytes


class Transaction(NamedTuple):
    """Unsigned transaction. `to` is None for a deployment. Amounts are in wei.

    The class is a tuple, because creating a frozen attrs instance takes as long as encoding the transaction.
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
        """Sign and encode the transaction. The same transaction and wallet always give the same bytes."""
        fields = self._encode_unsigned()
        compact, parity = wallet.sign_recoverable(_signing_digest(fields))
        return _encode_signed(fields, parity, compact[:32], compact[32:])

    @property
    def digest(self) -> bytes:
        """Return the hash that the signature covers."""
        return _signing_digest(self._encode_unsigned())

    def with_signature(self, parity: int, r: bytes, s: bytes) -> SignedTransaction:
        """Encode the transaction with a signature from an external signer."""
        return _encode_signed(self._encode_unsigned(), parity, r, s)

    def _encode_unsigned(self) -> bytes:
        chain_id, nonce, tip, fee_cap, gas, to, value, data = self
        if to is not None and len(to) != 20:
            raise ValueError("to must be 20 bytes, or None for a deployment")
        return b"".join(
            (
                _encode_integers(chain_id),
                _encode_integer(nonce),
                _encode_integers(tip, fee_cap),
                _encode_integer(gas),
                b"\x80" if to is None else b"\x94" + to,
                _encode_integers(value) if value else b"\x80",
                b"" if len(data) == 1 and data[0] < 0x80 else _length_prefix(0x80, len(data)),
                data,
                _EMPTY_LIST,
            )
        )


def _signing_digest(fields: bytes) -> bytes:
    return keccak256(_list_head(len(fields)) + fields)


def _encode_signed(fields: bytes, parity: int, r: bytes, s: bytes) -> SignedTransaction:
    # RLP integers have no leading zeros. In one of 128 signatures, r or s is shorter than 32 bytes.
    signature = (b"\x01" if parity else b"\x80") + _encode_string(r.lstrip(b"\0")) + _encode_string(s.lstrip(b"\0"))
    raw = _list_head(len(fields) + len(signature)) + fields + signature
    return SignedTransaction(raw, keccak256(raw))


# RLP as in `common.inclusion.rlp`, but faster, because encodings of repeated values are cached.
_SINGLE_BYTES: Final = [bytes([value]) for value in range(256)]


def _encode_integer(value: int) -> bytes:
    if 0 < value < 0x80:
        return _SINGLE_BYTES[value]
    length = (value.bit_length() + 7) >> 3
    return _SINGLE_BYTES[0x80 + length] + value.to_bytes(length, "big")  # raises OverflowError for a negative value


@lru_cache(maxsize=64)
def _encode_integers(*values: int) -> bytes:
    """Encode integers that rarely change between transactions, so that the cache usually hits."""
    return b"".join(map(_encode_integer, values))


def _encode_string(value: bytes) -> bytes:
    length = len(value)
    if length == 1 and value[0] < 0x80:
        return value
    return _length_prefix(0x80, length) + value


@lru_cache(maxsize=1024)
def _list_head(list_length: int) -> bytes:
    return EIP1559_TYPE + _length_prefix(0xC0, list_length)


# Transactions that call the same function have few different lengths, so the cache almost always hits.
@lru_cache(maxsize=1024)
def _length_prefix(kind: int, length: int) -> bytes:
    if length < 56:
        return _SINGLE_BYTES[kind + length]
    size = (length.bit_length() + 7) >> 3
    return _SINGLE_BYTES[kind + 55 + size] + length.to_bytes(size, "big")
