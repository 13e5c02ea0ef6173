"""Merkle-Patricia tries: the roots that block headers carry, and proofs that a value stands under one.

    leaf       rlp([path with flag 2 or 3, value])
    extension  rlp([path with flag 0 or 1, child])
    branch     rlp([child for each of 16 digits, value])

A path is hex digits, two in a byte, led by its flag: even ones (0, 2) are followed by a digit 0, odd ones (1, 3) are
not.
A child is its encoding where that is shorter than 32 bytes, else its keccak256. A proof is the encodings of the nodes
from the root to the value, those that stand inside of another left out.

In a block, the key of the n-th transaction, and of its receipt, is rlp(n).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from common.inclusion import rlp
from common.inclusion.rlp import Item
from common.keccak import keccak256
from common.refusal import Refused

EMPTY_ROOT: Final = keccak256(rlp.encode(b""))

_Digits = tuple[int, ...]


def key_of(index: int) -> bytes:
    """The key of the transaction at `index` of a block."""
    return rlp.encode(rlp.integer(index))


class Trie:
    """A trie over values that are all at hand. None of them may be empty: that is how a trie writes nothing."""

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        if not all(values.values()):
            raise ValueError("a trie holds no empty values")
        self._pairs = sorted((_digits(key), value) for key, value in values.items())
        self._nodes: dict[bytes, bytes] = {}  # the encodings of those that are named by their hash
        top = rlp.encode(self._built(self._pairs, 0)) if self._pairs else rlp.encode(b"")
        self.root = keccak256(top)
        self._nodes[self.root] = top

    def proof(self, key: bytes) -> list[bytes]:
        """Of a key that is in it; KeyError for another."""
        digits = _digits(key)
        if all(digits != path for path, _ in self._pairs):
            raise KeyError(key)
        nodes: list[bytes] = []
        child: Item = self.root
        while True:
            if isinstance(child, bytes):
                nodes.append(self._nodes[child])
                child = rlp.decode(nodes[-1])
            step = _step(child, digits)
            if isinstance(step, bytes):
                return nodes
            child, digits = step

    def _built(self, pairs: Sequence[tuple[_Digits, bytes]], depth: int) -> Item:
        """The node over these pairs, whose paths are alike in their first `depth` digits."""
        first, last = pairs[0][0], pairs[-1][0]
        if len(pairs) == 1:
            return [_path(first[depth:], leaf=True), pairs[0][1]]
        shared = depth
        while shared < min(len(first), len(last)) and first[shared] == last[shared]:
            shared += 1
        if shared > depth:
            return [_path(first[depth:shared], leaf=False), self._child(self._built(pairs, shared))]
        ends = pairs[0][1] if len(first) == depth else b""
        below = [[pair for pair in pairs if len(pair[0]) > depth and pair[0][depth] == digit] for digit in range(16)]
        return [*(self._child(self._built(each, depth + 1)) if each else b"" for each in below), ends]

    def _child(self, node: Item) -> Item:
        encoded = rlp.encode(node)
        if len(encoded) < 32:
            return node
        name = keccak256(encoded)
        self._nodes[name] = encoded
        return name


def proved(root: bytes, key: bytes, proof: Sequence[bytes], param: str | None = None) -> bytes:
    """The value that stands at `key` under `root`. Refused where the proof shows none, or more than it must."""
    digits, left = _digits(key), list(proof)
    child: Item = root
    while True:
        if isinstance(child, bytes):
            if not left or len(child) != 32 or keccak256(left[0]) != child:
                raise Refused(f"{param or 'the proof'} does not lead to its root", param)
            child = rlp.decode(left.pop(0), param)
        try:
            step = _step(child, digits)
        except Refused as wrong:
            raise Refused(f"{param or 'the proof'}: {wrong.message}", param) from None
        if isinstance(step, bytes):
            if left:
                raise Refused(f"{param or 'the proof'} holds more nodes than lead to its value", param)
            return step
        child, digits = step


def _step(node: Item, digits: _Digits) -> bytes | tuple[Item, _Digits]:
    """The value at the end of the path, or the next node and what is left of the path."""
    if isinstance(node, bytes) or len(node) not in {2, 17}:
        raise Refused("this is no node of a trie")
    if len(node) == 17:
        child = node[digits[0]] if digits else node[16]
        if not child:
            raise Refused("nothing stands at its key")
        return (child, digits[1:]) if digits else rlp.text_of(child)
    path, leaf = _read_path(rlp.text_of(node[0]))
    if digits[: len(path)] != path or (leaf and len(path) != len(digits)):
        raise Refused("nothing stands at its key")
    return rlp.text_of(node[1]) if leaf else (node[1], digits[len(path) :])


def _digits(key: bytes) -> _Digits:
    return tuple(digit for byte in key for digit in (byte >> 4, byte & 15))


def _path(digits: _Digits, *, leaf: bool) -> bytes:
    odd = len(digits) % 2
    led = (2 * leaf + odd, *digits) if odd else (2 * leaf, 0, *digits)
    return bytes(high << 4 | low for high, low in zip(led[::2], led[1::2], strict=True))


def _read_path(path: bytes) -> tuple[_Digits, bool]:
    flag, *digits = _digits(path) or (16,)
    if flag > 3 or (flag % 2 == 0 and digits[0] != 0):
        raise Refused("this is no path of a trie")
    return tuple(digits[1 - flag % 2 :]), flag >= 2
