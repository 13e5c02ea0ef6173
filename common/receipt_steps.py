"""Build and read the steps of a receipt. A step proves that a block includes one event of the job.

header              the block's header; its keccak256 is `block`
transaction_proof   from the header's transactions root to the transaction at `index`; its keccak256 is `transaction`
receipt_proof       from the header's receipts root to the receipt at `index`; its log number `log` is the event
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs

from common.inclusion.contents import BlockContents, Log, build_trie, read_receipt
from common.inclusion.header import Header, encode_header, read_header
from common.inclusion.trie import trie_key, verify_proof
from common.keccak import keccak256
from common.refusal import Refused
from common.scalars import hex_of, read_hex, read_hex_upto, read_uint

_STEP_FIELDS: Final = frozenset(
    {"event", "block", "header", "index", "log", "transaction", "transaction_proof", "receipt_proof"}
)
_MAX_HEADER_BYTES: Final = 4096
_MAX_NODE_BYTES: Final = 8 << 20
_MAX_PROOF_NODES: Final = 16


@attrs.frozen(slots=True)
class ReceiptStep:
    """Proved event. `logs` has all logs of the event's transaction, and `log_index` is the event's index in `logs`."""

    event: str
    header: Header
    index: int
    log_index: int
    transaction: bytes
    logs: tuple[Log, ...]

    @property
    def log(self) -> Log:
        return self.logs[self.log_index]

    @property
    def chain_position(self) -> tuple[int, int, int]:
        return self.header.number, self.index, self.log_index


def build_step(
    event: str, block: Mapping[str, Any], contents: BlockContents, index: int, log_index: int
) -> dict[str, Any]:
    """Build the JSON of a step from a block that a node returned. Refuse an inconsistent block."""
    header, key = encode_header(block), trie_key(index)
    return {
        "event": event,
        "block": hex_of(keccak256(header)),
        "header": hex_of(header),
        "index": str(index),
        "log": str(log_index),
        "transaction": hex_of(keccak256(contents.transactions[index])),
        "transaction_proof": [hex_of(node) for node in build_trie(contents.transactions).proof(key)],
        "receipt_proof": [hex_of(node) for node in build_trie(contents.receipts).proof(key)],
    }


def read_step(given: object, path: str) -> ReceiptStep:
    if not isinstance(given, dict) or given.keys() != _STEP_FIELDS:
        raise Refused(f"{path} must have exactly the fields {', '.join(sorted(_STEP_FIELDS))}", path)
    event = given["event"]
    if not isinstance(event, str):
        raise Refused(f"{path}.event must be a string", f"{path}.event")
    header = read_header(read_hex_upto(given["header"], _MAX_HEADER_BYTES, f"{path}.header"), f"{path}.header")
    if read_hex(given["block"], 32, f"{path}.block") != header.hash:
        raise Refused(f"{path}.block must be the hash of {path}.header", f"{path}.block")
    index, log_index = (read_uint(given[name], 32, f"{path}.{name}") for name in ("index", "log"))
    transaction = _proved_value(given, header.transactions_root, index, f"{path}.transaction_proof")
    if read_hex(given["transaction"], 32, f"{path}.transaction") != keccak256(transaction):
        raise Refused(f"{path}.transaction must be the hash of the proved transaction", f"{path}.transaction")
    receipt = read_receipt(
        _proved_value(given, header.receipts_root, index, f"{path}.receipt_proof"), f"{path}.receipt_proof"
    )
    if not receipt.succeeded or log_index >= len(receipt.logs):
        raise Refused(
            f"{path}.log must be the index of one of {len(receipt.logs)} logs of a successful transaction",
            f"{path}.log",
        )
    return ReceiptStep(event, header, index, log_index, keccak256(transaction), receipt.logs)


def _proved_value(given: Mapping[str, Any], root: bytes, index: int, path: str) -> bytes:
    nodes = given[path.rpartition(".")[2]]
    if not isinstance(nodes, list) or len(nodes) > _MAX_PROOF_NODES:
        raise Refused(f"{path} must be a list of at most {_MAX_PROOF_NODES} nodes", path)
    return verify_proof(root, trie_key(index), [read_hex_upto(node, _MAX_NODE_BYTES, path) for node in nodes], path)
