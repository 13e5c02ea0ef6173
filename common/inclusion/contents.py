"""Contents of a block as its roots commit to them: transactions and their receipts, of types 0 to 4.

0                   rlp([nonce, gas price, gas, to, value, data, v, r, s])
1 (access list)     0x01 ‖ rlp([chain id, nonce, gas price, gas, to, value, data, access list, y, r, s])
2 (EIP-1559)        0x02 ‖ rlp([chain id, nonce, tip, fee cap, gas, to, value, data, access list, y, r, s])
3 (blobs)           0x03 ‖ as 2, and max fee per blob gas, blob hashes in front of y
4 (delegations)     0x04 ‖ as 2, and the authorisations in front of y
receipt             its type, unless 0 ‖ rlp([status, gas used so far, bloom, [[address, topics, data], …]])
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
    """Of one transaction, as far as it tells what a contract said."""

    succeeded: bool
    logs: tuple[Log, ...]


@attrs.frozen(slots=True)
class Contents:
    """A block's transactions and receipts as bytes, in order."""

    transactions: tuple[bytes, ...]
    receipts: tuple[bytes, ...]

    @classmethod
    def of(cls, block: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]) -> "Contents":
        """From eth_getBlockByHash with whole transactions and eth_getBlockReceipts. Refused where they do not make the
        roots that the block's header names: nothing that is built on them could be proved."""
        made = cls(
            tuple(encode_transaction(each) for each in objects(block, "transactions")),
            tuple(encode_receipt(each) for each in receipts),
        )
        for values, name in ((made.transactions, "transactionsRoot"), (made.receipts, "receiptsRoot")):
            if trie_over(values).root != octets(block, name, 32):
                raise Refused(f"the block's {name} is not of what the node says is in the block", name)
        return made


def trie_over(values: Sequence[bytes]) -> Trie:
    return Trie({key_of(n): value for n, value in enumerate(values)})


def encode_transaction(said: Mapping[str, Any]) -> bytes:
    """Refused for a type that is not known here, or where the node's hash is not of these bytes."""
    kind = _type(said)
    to = b"" if said.get("to") is None else octets(said, "to", 20)
    middle: list[Item] = [_integer(said, "gas"), to, _integer(said, "value"), octets(said, "input")]
    signature: list[Item] = [_integer(said, "r"), _integer(said, "s")]
    nonce = _integer(said, "nonce")
    items: list[Item]
    if kind == 0:
        items = [nonce, _integer(said, "gasPrice"), *middle, _integer(said, "v"), *signature]
    else:
        names = ("gasPrice",) if kind == 1 else ("maxPriorityFeePerGas", "maxFeePerGas")
        fees = [_integer(said, name) for name in names]
        items = [_integer(said, "chainId"), nonce, *fees, *middle, _access_list(said), *_extra(said, kind)]
        items += [_parity(said), *signature]
    raw = _typed(kind, rlp.encode(items))
    if keccak256(raw) != octets(said, "hash", 32):
        raise Refused(f"the hash of a transaction of type {kind} is not of its fields", "hash")
    return raw


def encode_receipt(said: Mapping[str, Any]) -> bytes:
    logs: list[Item] = [
        [octets(log, "address", 20), texts(log, "topics", 32), octets(log, "data")] for log in objects(said, "logs")
    ]
    outcome = _integer(said, "status") if said.get("status") is not None else octets(said, "root", 32)
    items: list[Item] = [outcome, _integer(said, "cumulativeGasUsed"), octets(said, "logsBloom", 256), logs]
    return _typed(_type(said), rlp.encode(items))


def read_receipt(raw: bytes, param: str | None = None) -> Receipt:
    if raw and 0 < raw[0] <= _HIGHEST_TYPE:
        raw = raw[1:]
    items = rlp.decode_list(raw, param)
    if len(items) != 4 or isinstance(items[3], bytes):
        raise Refused(f"{param or 'the receipt'} must have four fields, logs last", param)
    return Receipt(rlp.text_of(items[0], param) == b"\x01", tuple(_log(each, param) for each in items[3]))


def _log(item: Item, param: str | None) -> Log:
    if isinstance(item, bytes) or len(item) != 3 or isinstance(item[1], bytes):
        raise Refused(f"{param or 'the receipt'} holds a log that is none", param)
    topics = tuple(rlp.text_of(each, param, 32) for each in item[1])
    return Log(rlp.text_of(item[0], param, 20), topics, rlp.text_of(item[2], param))


def _type(said: Mapping[str, Any]) -> int:
    kind = quantity(said, "type") if said.get("type") is not None else 0
    if kind > _HIGHEST_TYPE:
        raise Refused(f"the block holds a transaction of type {kind}, which is not known here: up to 4 are", "type")
    return kind


def _typed(kind: int, encoded: bytes) -> bytes:
    return bytes((kind,)) + encoded if kind else encoded


def _integer(said: Mapping[str, Any], name: str) -> bytes:
    return rlp.integer(quantity(said, name))


def _parity(said: Mapping[str, Any]) -> bytes:
    return _integer(said, "v" if said.get("yParity") is None else "yParity")


def _access_list(said: Mapping[str, Any]) -> list[Item]:
    return [[octets(each, "address", 20), texts(each, "storageKeys", 32)] for each in objects(said, "accessList")]


def _extra(said: Mapping[str, Any], kind: int) -> list[Item]:
    if kind == 3:
        return [_integer(said, "maxFeePerBlobGas"), texts(said, "blobVersionedHashes", 32)]
    if kind != 4:
        return []
    return [[_authorisation(each) for each in objects(said, "authorizationList")]]


def _authorisation(said: Mapping[str, Any]) -> list[Item]:
    parts = [_integer(said, "chainId"), octets(said, "address", 20), _integer(said, "nonce")]
    return [*parts, _parity(said), _integer(said, "r"), _integer(said, "s")]
