"""The Solidity ABI, word by word: calldata out, event data and return values in.

A value of static type fills whole words of 32 bytes in the head. A dynamic one puts its offset there, counted
from the start of the head, and its content behind all heads:

    head:  word 0 │ word 1 │ offset of a │ word 3 │ offset of b
    tail:  length of a │ a, zero-padded to whole words │ length of b │ b, …

Encoding: `call(SELECTOR, bytes32(job_id), uint(issued_at), dynamic(signature))`. A static struct is the words
of its fields side by side, in the head (`join`) or as one row of an `array`.

Decoding: `uint_at(data, 1, 64)`, `bytes_at(data, 3)`: the second argument counts words of the head. What no
compiler writes is refused: values wider than their type, offsets into the head, offsets and lengths that leave
the data, padding that is not zero. Data behind the last value is not looked at.
"""

from collections.abc import Iterable, Sequence
from typing import NewType

import attrs

from common.keccak import keccak256
from common.refusal import Refused

Words = NewType("Words", bytes)
"""Static content: a whole number of words."""


@attrs.frozen(slots=True)
class Tail:
    """Dynamic content, its length first; its place in the head is taken by an offset."""

    content: bytes


def selector(signature: str) -> bytes:
    """The first 4 bytes of calldata and of a custom error: `selector("reclaim(bytes32)")`."""
    return keccak256(signature.encode("ascii"))[:4]


def topic(signature: str) -> bytes:
    """The first topic of an event's logs."""
    return keccak256(signature.encode("ascii"))


def uint(value: int) -> Words:
    return Words(value.to_bytes(32, "big"))  # OverflowError when it is no uint256


def boolean(value: bool) -> Words:
    return uint(1 if value else 0)


def bytes32(value: bytes) -> Words:
    if len(value) != 32:
        raise ValueError("a bytes32 has 32 bytes")
    return Words(value)


def address(value: bytes) -> Words:
    if len(value) != 20:
        raise ValueError("an address has 20 bytes")
    return Words(bytes(12) + value)


def join(words: Iterable[Words]) -> Words:
    """A static struct from the words of its fields."""
    return Words(b"".join(words))


def dynamic(value: bytes) -> Tail:
    """`bytes`."""
    return Tail(b"".join((len(value).to_bytes(32, "big"), value, bytes(-len(value) % 32))))


def text(value: str) -> Tail:
    """`string`."""
    return dynamic(value.encode("utf-8"))


def array(rows: Sequence[Words]) -> Tail:
    """`T[]` of a static T: one row each."""
    return Tail(uint(len(rows)) + b"".join(rows))


def array_of_dynamic(items: Sequence[Tail]) -> Tail:
    """`bytes[]` or `string[]`: the offsets count from behind the length."""
    return Tail(uint(len(items)) + encode(*items))


def encode(*values: Words | Tail) -> bytes:
    """The arguments of a call, or the data of an event."""
    offset = sum([32 if isinstance(value, Tail) else len(value) for value in values])
    heads: list[bytes] = []
    tails: list[bytes] = []
    for value in values:
        if isinstance(value, Tail):
            heads.append(offset.to_bytes(32, "big"))
            tails.append(value.content)
            offset += len(value.content)
        else:
            heads.append(value)
    return b"".join(heads + tails)


def call(selector: bytes, *values: Words | Tail) -> bytes:
    """Calldata."""
    return selector + encode(*values)


def uint_at(data: bytes, word: int, bits: int = 256) -> int:
    raw = data[32 * word : 32 * word + 32]
    if len(raw) != 32:
        raise Refused(f"ABI data of {len(data)} bytes has no word {word}")
    value = int.from_bytes(raw, "big")
    if value >> bits:
        raise Refused(f"ABI word {word} does not fit a uint{bits}")
    return value


def boolean_at(data: bytes, word: int) -> bool:
    return uint_at(data, word, 1) == 1


def bytes32_at(data: bytes, word: int) -> bytes:
    raw = data[32 * word : 32 * word + 32]
    if len(raw) != 32:
        raise Refused(f"ABI data of {len(data)} bytes has no word {word}")
    return raw


def address_at(data: bytes, word: int) -> bytes:
    return uint_at(data, word, 160).to_bytes(20, "big")


def bytes_at(data: bytes, word: int, head: int = 0) -> bytes:
    """A `bytes` whose offset stands in the head's word. `head`: words of the whole head, where more follow."""
    start, length = _tail(data, word, head)
    end = start + length
    padding = -length % 32
    if end + padding > len(data):
        raise Refused(f"the content of ABI word {word} runs past the data")
    if padding and data[end : end + padding].strip(b"\0"):
        raise Refused(f"the content of ABI word {word} has padding that is not zero")
    return data[start:end]


def text_at(data: bytes, word: int, head: int = 0) -> str:
    """A `string` whose offset stands in the head's word."""
    try:
        return bytes_at(data, word, head).decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(f"the string of ABI word {word} is not UTF-8") from None


def rows_at(data: bytes, word: int, words_per_row: int, head: int = 0) -> list[bytes]:
    """A `T[]` of a static T: the words of each row, to be read with the functions above."""
    start, count = _tail(data, word, head)
    width = 32 * words_per_row
    end = start + count * width
    if end > len(data):
        raise Refused(f"the array of ABI word {word} runs past the data")
    return [data[row : row + width] for row in range(start, end, width)]


def _tail(data: bytes, word: int, head: int) -> tuple[int, int]:
    """Where the content behind the head's word starts, and its length."""
    offset = uint_at(data, word)
    if offset < 32 * max(head, word + 1):
        raise Refused(f"ABI word {word} is an offset into the head")
    # No word starts past the end; this also keeps numbers small before they index anything.
    if offset % 32 or offset + 32 > len(data):
        raise Refused(f"ABI word {word} is no offset into the data")
    return offset + 32, int.from_bytes(data[offset : offset + 32], "big")
