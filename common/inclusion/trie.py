"""Merkle-Patricia tries: compute the roots in block headers, and build and check inclusion proofs.

    leaf       rlp([path with flag 2 or 3, value])
    extension  rlp([path with flag 0 or 1, child])
    branch     rlp([child for each of 16 digits, value])

A path has two hex digits per byte of the key. Nodes put the flag before it, and a zero digit follows flags 0 and 2.
A node refers to a child by the child's encoding if the encoding is shorter than 32 bytes, otherwise by its keccak256.
A proof lists the encodings of the nodes from the root to the value, except nodes that are embedded in their parent.

In a block, rlp(n) is the key of transaction n and of its receipt.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from common.inclusion import rlp
from common.inclusion.rlp import Item
from common.keccak import keccak256
from common.refusal import Refused

EMPTY_ROOT: Final = keccak256(rlp.encode(b""))

_Digits = tuple[int, ...]


def trie_key(index: int) -> bytes:
    """Return the key of a transaction, or of its receipt, by its index in the block."""
    return rlp.encode(rlp.integer_content(index))


class Trie:
    """Trie of the given values. No value may be empty, because an empty string marks a missing value."""

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        if not all(values.values()):
            raise ValueError("a trie must not have an empty value")
        self._pairs = sorted((_hex_digits(key), value) for key, value in values.items())
        self._nodes: dict[bytes, bytes] = {}  # encodings by hash
        top = rlp.encode(self._build_node(self._pairs, 0)) if self._pairs else rlp.encode(b"")
        self.root = keccak256(top)
        self._nodes[self.root] = top

    def proof(self, key: bytes) -> list[bytes]:
        """Return the inclusion proof of a key. Raise KeyError if the trie does not have the key."""
        digits = _hex_digits(key)
        if all(digits != path for path, _ in self._pairs):
            raise KeyError(key)
        nodes: list[bytes] = []
        child: Item = self.root
        while True:
            if isinstance(child, bytes):
                nodes.append(self._nodes[child])
                child = rlp.decode(nodes[-1])
            step = _descend(child, digits)
            if isinstance(step, bytes):
                return nodes
            child, digits = step

    def _build_node(self, pairs: Sequence[tuple[_Digits, bytes]], depth: int) -> Item:
        """Return the node that covers these pairs. All paths in `pairs` share the first `depth` digits."""
        first, last = pairs[0][0], pairs[-1][0]
        if len(pairs) == 1:
            return [_encode_path(first[depth:], leaf=True), pairs[0][1]]
        shared = depth
        while shared < min(len(first), len(last)) and first[shared] == last[shared]:
            shared += 1
        if shared > depth:
            return [
                _encode_path(first[depth:shared], leaf=False),
                self._child_reference(self._build_node(pairs, shared)),
            ]
        value = pairs[0][1] if len(first) == depth else b""
        children = [[pair for pair in pairs if len(pair[0]) > depth and pair[0][depth] == digit] for digit in range(16)]
        return [
            *(self._child_reference(self._build_node(each, depth + 1)) if each else b"" for each in children),
            value,
        ]

    def _child_reference(self, node: Item) -> Item:
        """Return the item by which a parent refers to this node. Store the node's encoding if the item is a hash."""
        encoded = rlp.encode(node)
        if len(encoded) < 32:
            return node
        name = keccak256(encoded)
        self._nodes[name] = encoded
        return name


def verify_proof(root: bytes, key: bytes, proof: Sequence[bytes], param: str | None = None) -> bytes:
    """Check a proof and return the value at `key`. Refuse a wrong proof, and a proof with unneeded nodes."""
    digits, unused_nodes = _hex_digits(key), list(proof)
    child: Item = root
    while True:
        if isinstance(child, bytes):
            if not unused_nodes or len(child) != 32 or keccak256(unused_nodes[0]) != child:
                raise Refused(f"{param or 'the proof'} does not match its root", param)
            child = rlp.decode(unused_nodes.pop(0), param)
        try:
            step = _descend(child, digits)
        except Refused as refusal:
            raise Refused(f"{param or 'the proof'}: {refusal.message}", param) from None
        if isinstance(step, bytes):
            if unused_nodes:
                raise Refused(f"{param or 'the proof'} has nodes that are not on the path to its value", param)
            return step
        child, digits = step


def _descend(node: Item, digits: _Digits) -> bytes | tuple[Item, _Digits]:
    """Return the value if the path ends here, otherwise the next node and the remaining path."""
    if isinstance(node, bytes) or len(node) not in {2, 17}:
        raise Refused("malformed trie node")
    if len(node) == 17:
        child = node[digits[0]] if digits else node[16]
        if not child:
            raise Refused("the trie has no value at this key")
        return (child, digits[1:]) if digits else rlp.read_string(child)
    path, leaf = _decode_path(rlp.read_string(node[0]))
    if digits[: len(path)] != path or (leaf and len(path) != len(digits)):
        raise Refused("the trie has no value at this key")
    return rlp.read_string(node[1]) if leaf else (node[1], digits[len(path) :])


def _hex_digits(key: bytes) -> _Digits:
    return tuple(digit for byte in key for digit in (byte >> 4, byte & 15))


def _encode_path(digits: _Digits, *, leaf: bool) -> bytes:
    odd = len(digits) % 2
    flagged = (2 * leaf + odd, *digits) if odd else (2 * leaf, 0, *digits)
    return bytes(high << 4 | low for high, low in zip(flagged[::2], flagged[1::2], strict=True))


def _decode_path(path: bytes) -> tuple[_Digits, bool]:
    flag, *digits = _hex_digits(path) or (16,)
    if flag > 3 or (flag % 2 == 0 and digits[0] != 0):
        raise Refused("malformed path in a trie node")
    return tuple(digits[1 - flag % 2 :]), flag >= 2
