"""Encode a block header from a node into the bytes whose keccak256 is the block hash, and decode such bytes.

    rlp([parent, uncles, miner, state root, transactions root, receipts root, bloom, difficulty, number, gas limit,
         gas used, time, extra data, mix hash, nonce,
         base fee?, withdrawals root?, blob gas used?, excess blob gas?, parent beacon root?, requests hash?])

London, Shanghai, Cancun (three fields) and Prague added the optional fields. A header that has an optional field also
has all fields before it.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.inclusion import rlp
from common.inclusion.node_values import read_bytes, read_quantity
from common.keccak import keccak256
from common.refusal import Refused

# JSON-RPC name and byte length of each field: None for an integer, 0 for bytes of any length.
_FIELDS: Final[tuple[tuple[str, int | None], ...]] = (
    *(("parentHash", 32), ("sha3Uncles", 32), ("miner", 20), ("stateRoot", 32)),
    *(("transactionsRoot", 32), ("receiptsRoot", 32), ("logsBloom", 256), ("difficulty", None), ("number", None)),
    *(("gasLimit", None), ("gasUsed", None), ("timestamp", None), ("extraData", 0), ("mixHash", 32), ("nonce", 8)),
    *(("baseFeePerGas", None), ("withdrawalsRoot", 32), ("blobGasUsed", None), ("excessBlobGas", None)),
    *(("parentBeaconBlockRoot", 32), ("requestsHash", 32)),
)
_REQUIRED_FIELD_COUNT: Final = 15
_FIELD_COUNTS: Final = frozenset({15, 16, 17, 20, 21})  # before London, London, Shanghai, Cancun, Prague
_TRANSACTIONS_INDEX, _RECEIPTS_INDEX, _NUMBER_INDEX, _TIME_INDEX = 4, 5, 8, 11


@attrs.frozen(slots=True)
class Header:
    """Fields of a block header. `hash` is computed from the header's bytes."""

    hash: bytes
    number: int
    time: int
    transactions_root: bytes
    receipts_root: bytes


def encode_header(block: Mapping[str, Any]) -> bytes:
    """Encode the header of a JSON-RPC block. Refuse a malformed header, and a hash that does not match the fields."""
    items: list[rlp.Item] = []
    for n, (name, length) in enumerate(_FIELDS):
        if n >= _REQUIRED_FIELD_COUNT and block.get(name) is None:
            break
        items.append(
            rlp.integer_content(read_quantity(block, name))
            if length is None
            else read_bytes(block, name, length or None)
        )
    raw = rlp.encode(items)
    if keccak256(raw) != read_bytes(block, "hash", 32):
        raise Refused(
            "the block's hash does not match its header fields; this chain may use non-standard headers", "hash"
        )
    return raw


def read_header(raw: bytes, param: str | None = None) -> Header:
    items = rlp.decode_list(raw, param)
    if len(items) not in _FIELD_COUNTS:
        raise Refused(f"{param or 'the header'} has {len(items)} fields; expected 15, 16, 17, 20 or 21", param)
    for item, (_, length) in zip(items, _FIELDS, strict=False):
        if length is None:
            rlp.read_integer(item, param)
        else:
            rlp.read_string(item, param, length or None)
    return Header(
        hash=keccak256(raw),
        number=rlp.read_integer(items[_NUMBER_INDEX]),
        time=rlp.read_integer(items[_TIME_INDEX]),
        transactions_root=rlp.read_string(items[_TRANSACTIONS_INDEX]),
        receipts_root=rlp.read_string(items[_RECEIPTS_INDEX]),
    )
