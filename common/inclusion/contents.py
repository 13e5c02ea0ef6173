"""Encode the transactions and receipts of a block, types 0 to 4, as the block's roots commit to them.

0                   rlp([nonce, gas price, gas, to, value, data, v, r, s])
1 (access list)     0x01 ‖ rlp([chain id, nonce, gas price, gas, to, value, data, access list, y, r, s])
2 (EIP-1559)        0x02 ‖ rlp([chain id, nonce, tip, fee cap, gas, to, value, data, access list, y, r, s])
3 (blobs)           0x03 ‖ as 2, with max fee per blob gas and blob hashes before y
4 (delegations)     0x04 ‖ as 2, with the authorisations before y
receipt             type (if not 0) ‖ rlp([status, cumulative gas used, bloom, [[address, topics, data], …]])
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from common.inclusion import rlp
from common.inclusion.node_values import objects, octets, quantity, texts
from common.inclusion.rlp import Item
from common.inclusion.trie import Trie, key_of
from common.keccak import keccak256
from common.refusal import Refused

_HIGHEST_TYPE: Final = 4


@attrs.frozen(slots=True)
class Log:
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


@attrs.frozen(slots=True)
class Receipt:
    """Status and logs of one transaction."""

    succeeded: bool
    logs: tuple[Log, ...]


@attrs.frozen(slots=True)
class Contents:
    """Encoded transactions and receipts of a block, in order."""

    transactions: tuple[bytes, ...]
    receipts: tuple[bytes, ...]

    @classmethod
    def of(cls, block: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]) -> "Contents":
        """Encode the results of eth_getBlockByHash, with full transactions, and eth_getBlockReceipts.

        Refused if they do not reproduce the roots in the block's header, because no proof could be built then.
        """
        made = cls(
            tuple(encode_transaction(each) for each in objects(block, "transactions")),
            tuple(encode_receipt(each) for each in receipts),
        )
        for values, name in ((made.transactions, "transactionsRoot"), (made.receipts, "receiptsRoot")):
            if trie_over(values).root != octets(block, name, 32):
                raise Refused(
                    f"the block's {name} does not match the transactions or receipts that the node returned", name
                )
        return made


def trie_over(values: Sequence[bytes]) -> Trie:
    return Trie({key_of(n): value for n, value in enumerate(values)})


def encode_transaction(fields: Mapping[str, Any]) -> bytes:
    """Encode a transaction. Refused if its type is unsupported, or its hash does not match the encoding."""
    kind = _type(fields)
    to = b"" if fields.get("to") is None else octets(fields, "to", 20)
    middle: list[Item] = [_integer(fields, "gas"), to, _integer(fields, "value"), octets(fields, "input")]
    signature: list[Item] = [_integer(fields, "r"), _integer(fields, "s")]
    nonce = _integer(fields, "nonce")
    items: list[Item]
    if kind == 0:
        items = [nonce, _integer(fields, "gasPrice"), *middle, _integer(fields, "v"), *signature]
    else:
        names = ("gasPrice",) if kind == 1 else ("maxPriorityFeePerGas", "maxFeePerGas")
        fees = [_integer(fields, name) for name in names]
        items = [_integer(fields, "chainId"), nonce, *fees, *middle, _access_list(fields), *_extra(fields, kind)]
        items += [_parity(fields), *signature]
    raw = _typed(kind, rlp.encode(items))
    if keccak256(raw) != octets(fields, "hash", 32):
        raise Refused(f"the hash of a type {kind} transaction does not match its fields", "hash")
    return raw


def encode_receipt(fields: Mapping[str, Any]) -> bytes:
    logs: list[Item] = [
        [octets(log, "address", 20), texts(log, "topics", 32), octets(log, "data")] for log in objects(fields, "logs")
    ]
    outcome = _integer(fields, "status") if fields.get("status") is not None else octets(fields, "root", 32)
    items: list[Item] = [outcome, _integer(fields, "cumulativeGasUsed"), octets(fields, "logsBloom", 256), logs]
    return _typed(_type(fields), rlp.encode(items))


def read_receipt(raw: bytes, param: str | None = None) -> Receipt:
    if raw and 0 < raw[0] <= _HIGHEST_TYPE:
        raw = raw[1:]
    items = rlp.decode_list(raw, param)
    if len(items) != 4 or isinstance(items[3], bytes):
        raise Refused(f"{param or 'the receipt'} must have four fields, logs last", param)
    return Receipt(rlp.text_of(items[0], param) == b"\x01", tuple(_log(each, param) for each in items[3]))


def _log(item: Item, param: str | None) -> Log:
    if isinstance(item, bytes) or len(item) != 3 or isinstance(item[1], bytes):
        raise Refused(f"{param or 'the receipt'} holds a malformed log", param)
    topics = tuple(rlp.text_of(each, param, 32) for each in item[1])
    return Log(rlp.text_of(item[0], param, 20), topics, rlp.text_of(item[2], param))


def _type(fields: Mapping[str, Any]) -> int:
    kind = quantity(fields, "type") if fields.get("type") is not None else 0
    if kind > _HIGHEST_TYPE:
        raise Refused(f"the block holds a transaction of type {kind}; types 0 to 4 are supported", "type")
    return kind


def _typed(kind: int, encoded: bytes) -> bytes:
    return bytes((kind,)) + encoded if kind else encoded


def _integer(fields: Mapping[str, Any], name: str) -> bytes:
    return rlp.integer(quantity(fields, name))


def _parity(fields: Mapping[str, Any]) -> bytes:
    return _integer(fields, "v" if fields.get("yParity") is None else "yParity")


def _access_list(fields: Mapping[str, Any]) -> list[Item]:
    return [[octets(each, "address", 20), texts(each, "storageKeys", 32)] for each in objects(fields, "accessList")]


def _extra(fields: Mapping[str, Any], kind: int) -> list[Item]:
    if kind == 3:
        return [_integer(fields, "maxFeePerBlobGas"), texts(fields, "blobVersionedHashes", 32)]
    if kind != 4:
        return []
    return [[_authorisation(each) for each in objects(fields, "authorizationList")]]


def _authorisation(fields: Mapping[str, Any]) -> list[Item]:
    parts = [_integer(fields, "chainId"), octets(fields, "address", 20), _integer(fields, "nonce")]
    return [*parts, _parity(fields), _integer(fields, "r"), _integer(fields, "s")]
