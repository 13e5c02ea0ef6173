"""Encode the transactions and receipts of a block (types 0 to 4) into the values of the block's two tries.

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
from common.inclusion.node_values import read_bytes, read_bytes_list, read_objects, read_quantity
from common.inclusion.rlp import Item
from common.inclusion.trie import Trie, trie_key
from common.keccak import keccak256
from common.refusal import Refused

_MAX_TRANSACTION_TYPE: Final = 4


@attrs.frozen(slots=True)
class Log:
    address: bytes
    topics: tuple[bytes, ...]
    data: bytes


@attrs.frozen(slots=True)
class TransactionReceipt:
    """Status and logs of one transaction."""

    succeeded: bool
    logs: tuple[Log, ...]


@attrs.frozen(slots=True)
class BlockContents:
    """Encoded transactions and receipts of a block, in order."""

    transactions: tuple[bytes, ...]
    receipts: tuple[bytes, ...]

    @classmethod
    def of(cls, block: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]) -> "BlockContents":
        """Encode the results of eth_getBlockByHash (with full transactions) and eth_getBlockReceipts.

        Refuse results that do not reproduce the roots in the block's header, because no proof can be built from them.
        """
        contents = cls(
            tuple(encode_transaction(each) for each in read_objects(block, "transactions")),
            tuple(encode_receipt(each) for each in receipts),
        )
        for values, name in ((contents.transactions, "transactionsRoot"), (contents.receipts, "receiptsRoot")):
            if build_trie(values).root != read_bytes(block, name, 32):
                raise Refused(
                    f"the block's {name} does not match the transactions or receipts that the node returned", name
                )
        return contents


def build_trie(values: Sequence[bytes]) -> Trie:
    return Trie({trie_key(n): value for n, value in enumerate(values)})


def encode_transaction(fields: Mapping[str, Any]) -> bytes:
    """Encode a transaction. Refuse an unsupported type, and a hash that does not match the encoding."""
    kind = _read_type(fields)
    to = b"" if fields.get("to") is None else read_bytes(fields, "to", 20)
    common_fields: list[Item] = [
        _rlp_integer(fields, "gas"),
        to,
        _rlp_integer(fields, "value"),
        read_bytes(fields, "input"),
    ]
    signature: list[Item] = [_rlp_integer(fields, "r"), _rlp_integer(fields, "s")]
    nonce = _rlp_integer(fields, "nonce")
    items: list[Item]
    if kind == 0:
        items = [nonce, _rlp_integer(fields, "gasPrice"), *common_fields, _rlp_integer(fields, "v"), *signature]
    else:
        names = ("gasPrice",) if kind == 1 else ("maxPriorityFeePerGas", "maxFeePerGas")
        fees = [_rlp_integer(fields, name) for name in names]
        items = [
            _rlp_integer(fields, "chainId"),
            nonce,
            *fees,
            *common_fields,
            _rlp_access_list(fields),
            *_rlp_fields_of_type(fields, kind),
        ]
        items += [_rlp_parity(fields), *signature]
    raw = _with_type_byte(kind, rlp.encode(items))
    if keccak256(raw) != read_bytes(fields, "hash", 32):
        raise Refused(f"the hash of a type {kind} transaction does not match its fields", "hash")
    return raw


def encode_receipt(fields: Mapping[str, Any]) -> bytes:
    logs: list[Item] = [
        [read_bytes(log, "address", 20), read_bytes_list(log, "topics", 32), read_bytes(log, "data")]
        for log in read_objects(fields, "logs")
    ]
    outcome = _rlp_integer(fields, "status") if fields.get("status") is not None else read_bytes(fields, "root", 32)
    items: list[Item] = [
        outcome,
        _rlp_integer(fields, "cumulativeGasUsed"),
        read_bytes(fields, "logsBloom", 256),
        logs,
    ]
    return _with_type_byte(_read_type(fields), rlp.encode(items))


def read_receipt(raw: bytes, param: str | None = None) -> TransactionReceipt:
    if raw and 0 < raw[0] <= _MAX_TRANSACTION_TYPE:
        raw = raw[1:]
    items = rlp.decode_list(raw, param)
    if len(items) != 4 or isinstance(items[3], bytes):
        raise Refused(f"{param or 'the receipt'} must have four fields, the last a list of logs", param)
    return TransactionReceipt(
        rlp.read_string(items[0], param) == b"\x01", tuple(_read_log(each, param) for each in items[3])
    )


def _read_log(item: Item, param: str | None) -> Log:
    if isinstance(item, bytes) or len(item) != 3 or isinstance(item[1], bytes):
        raise Refused(f"{param or 'the receipt'} has a malformed log", param)
    topics = tuple(rlp.read_string(each, param, 32) for each in item[1])
    return Log(rlp.read_string(item[0], param, 20), topics, rlp.read_string(item[2], param))


def _read_type(fields: Mapping[str, Any]) -> int:
    kind = read_quantity(fields, "type") if fields.get("type") is not None else 0
    if kind > _MAX_TRANSACTION_TYPE:
        raise Refused(f"the block has a transaction of type {kind}; types 0 to 4 are supported", "type")
    return kind


def _with_type_byte(kind: int, encoded: bytes) -> bytes:
    return bytes((kind,)) + encoded if kind else encoded


def _rlp_integer(fields: Mapping[str, Any], name: str) -> bytes:
    return rlp.integer_content(read_quantity(fields, name))


def _rlp_parity(fields: Mapping[str, Any]) -> bytes:
    return _rlp_integer(fields, "v" if fields.get("yParity") is None else "yParity")


def _rlp_access_list(fields: Mapping[str, Any]) -> list[Item]:
    return [
        [read_bytes(each, "address", 20), read_bytes_list(each, "storageKeys", 32)]
        for each in read_objects(fields, "accessList")
    ]


def _rlp_fields_of_type(fields: Mapping[str, Any], kind: int) -> list[Item]:
    if kind == 3:
        return [_rlp_integer(fields, "maxFeePerBlobGas"), read_bytes_list(fields, "blobVersionedHashes", 32)]
    if kind != 4:
        return []
    return [[_rlp_authorisation(each) for each in read_objects(fields, "authorizationList")]]


def _rlp_authorisation(fields: Mapping[str, Any]) -> list[Item]:
    parts = [_rlp_integer(fields, "chainId"), read_bytes(fields, "address", 20), _rlp_integer(fields, "nonce")]
    return [*parts, _rlp_parity(fields), _rlp_integer(fields, "r"), _rlp_integer(fields, "s")]
