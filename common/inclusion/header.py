"""Encode a node's block header as the bytes that hash to the block hash (keccak256), and decode such bytes.

    rlp([parent, uncles, miner, state root, transactions root, receipts root, bloom, difficulty, number, gas limit,
         gas used, time, extra data, mix hash, nonce,
         base fee?, withdrawals root?, blob gas used?, excess blob gas?, parent beacon root?, requests hash?])

London, Shanghai, Cancun (three) and Prague added the optional fields. Each requires all earlier ones.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.inclusion import rlp
from common.inclusion.node_values import octets, quantity
from common.keccak import keccak256
from common.refusal import Refused

# name in JSON-RPC, and length in bytes (None: an integer, 0: any length)
_FIELDS: Final[tuple[tuple[str, int | None], ...]] = (
    *(("parentHash", 32), ("sha3Uncles", 32), ("miner", 20), ("stateRoot", 32)),
    *(("transactionsRoot", 32), ("receiptsRoot", 32), ("logsBloom", 256), ("difficulty", None), ("number", None)),
    *(("gasLimit", None), ("gasUsed", None), ("timestamp", None), ("extraData", 0), ("mixHash", 32), ("nonce", 8)),
    *(("baseFeePerGas", None), ("withdrawalsRoot", 32), ("blobGasUsed", None), ("excessBlobGas", None)),
    *(("parentBeaconBlockRoot", 32), ("requestsHash", 32)),
)
_REQUIRED_FIELDS: Final = 15
_FIELD_COUNTS: Final = frozenset({15, 16, 17, 20, 21})  # of the forks
_TRANSACTIONS, _RECEIPTS, _NUMBER, _TIME = 4, 5, 8, 11


@attrs.frozen(slots=True)
class Header:
    """Fields of a header. `hash` is computed from the header's bytes."""

    hash: bytes
    number: int
    time: int
    transactions_root: bytes
    receipts_root: bytes


def encode_header(block: Mapping[str, Any]) -> bytes:
    """Encode the header of a block from JSON-RPC. Refused if it is malformed, or its hash does not match its fields."""
    items: list[rlp.Item] = []
    for n, (name, length) in enumerate(_FIELDS):
        if n >= _REQUIRED_FIELDS and block.get(name) is None:
            break
        items.append(rlp.integer(quantity(block, name)) if length is None else octets(block, name, length or None))
    raw = rlp.encode(items)
    if keccak256(raw) != octets(block, "hash", 32):
        raise Refused(
            "the block's hash does not match its header fields; this chain may use non-standard headers", "hash"
        )
    return raw


def read_header(raw: bytes, param: str | None = None) -> Header:
    items = rlp.decode_list(raw, param)
    if len(items) not in _FIELD_COUNTS:
        raise Refused(f"{param or 'the header'} has {len(items)} fields; no fork has headers like this", param)
    for item, (_, length) in zip(items, _FIELDS, strict=False):
        if length is None:
            rlp.integer_of(item, param)
        else:
            rlp.text_of(item, param, length or None)
    return Header(
        hash=keccak256(raw),
        number=rlp.integer_of(items[_NUMBER]),
        time=rlp.integer_of(items[_TIME]),
        transactions_root=rlp.text_of(items[_TRANSACTIONS]),
        receipts_root=rlp.text_of(items[_RECEIPTS]),
    )
