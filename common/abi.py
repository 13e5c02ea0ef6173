"""Encode Solidity calldata, and decode event data and return values.

A value of static type fills whole 32-byte words in the head. A value of dynamic type has an offset in the head, counted
from the start of the head, and its content in the tail:

    head:  word 0 │ word 1 │ offset of a │ word 3 │ offset of b
    tail:  length of a │ a, zero-padded to whole words │ length of b │ b, …

Encode with `call_data(SELECTOR, bytes32(job_id), uint(issued_at), dynamic_bytes(signature))`. For a static struct,
concatenate the words of its fields with `static_struct`, also for each element of an `array`.

Decode with `uint_at(data, 1, 64)` or `bytes_at(data, 3)`. The second argument is the index of the word in the head.
Decoding rejects values wider than their type, offsets into the head, offsets and lengths outside the data, and padding
that is not zero. It ignores data after the last value.
"""

from collections.abc import Iterable, Sequence
from typing import NewType

import attrs

from common.keccak import keccak256
from common.refusal import Refused

Words = NewType("Words", bytes)
"""Encoded value of a static type: one or more 32-byte words."""


@attrs.frozen(slots=True)
class Tail:
    """Encoded value of a dynamic type: its length and its content. `encode` puts them in the tail."""

    content: bytes


def selector(signature: str) -> bytes:
    """Return the 4-byte selector of a function or custom error, e.g. of `reclaim(bytes32)`."""
    return keccak256(signature.encode("ascii"))[:4]


def topic(signature: str) -> bytes:
    """Return the first topic of an event's logs."""
    return keccak256(signature.encode("ascii"))


def uint(value: int) -> Words:
    """Encode an unsigned integer of any width. Raise OverflowError if the value does not fit a uint256."""
    return Words(value.to_bytes(32, "big"))


def boolean(value: bool) -> Words:
    """Encode a `bool` value."""
    return uint(1 if value else 0)


def bytes32(value: bytes) -> Words:
    """Encode a `bytes32` value."""
    if len(value) != 32:
        raise ValueError(f"a bytes32 must have 32 bytes, not {len(value)}")
    return Words(value)


def address(value: bytes) -> Words:
    """Encode an `address` value."""
    if len(value) != 20:
        raise ValueError(f"an address must have 20 bytes, not {len(value)}")
    return Words(bytes(12) + value)


def static_struct(words: Iterable[Words]) -> Words:
    """Encode a static struct from the words of its fields."""
    return Words(b"".join(words))


def dynamic_bytes(value: bytes) -> Tail:
    """Encode a `bytes` value."""
    return Tail(b"".join((len(value).to_bytes(32, "big"), value, bytes(-len(value) % 32))))


def dynamic_string(value: str) -> Tail:
    """Encode a `string` value."""
    return dynamic_bytes(value.encode("utf-8"))


def array(rows: Sequence[Words]) -> Tail:
    """Encode a `T[]` of a static T, one row for each element."""
    return Tail(uint(len(rows)) + b"".join(rows))


def array_of_dynamic(items: Sequence[Tail]) -> Tail:
    """Encode a `bytes[]` or `string[]`. Offsets are counted from the word after the length."""
    return Tail(uint(len(items)) + encode(*items))


def encode(*values: Words | Tail) -> bytes:
    """Encode the arguments of a call, or the data of an event."""
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


def call_data(selector: bytes, *values: Words | Tail) -> bytes:
    """Return the calldata of a function call."""
    return selector + encode(*values)


def uint_at(data: bytes, word: int, bits: int = 256) -> int:
    """Decode word `word` of the head as an unsigned integer of `bits` bits."""
    raw = data[32 * word : 32 * word + 32]
    if len(raw) != 32:
        raise Refused(f"ABI data of {len(data)} bytes has no word {word}")
    value = int.from_bytes(raw, "big")
    if value >> bits:
        raise Refused(f"ABI word {word} does not fit a uint{bits}")
    return value


def boolean_at(data: bytes, word: int) -> bool:
    """Decode word `word` of the head as a `bool`."""
    return uint_at(data, word, 1) == 1


def bytes32_at(data: bytes, word: int) -> bytes:
    """Decode word `word` of the head as a `bytes32`."""
    raw = data[32 * word : 32 * word + 32]
    if len(raw) != 32:
        raise Refused(f"ABI data of {len(data)} bytes has no word {word}")
    return raw


def address_at(data: bytes, word: int) -> bytes:
    """Decode word `word` of the head as an `address`."""
    return uint_at(data, word, 160).to_bytes(20, "big")


def bytes_at(data: bytes, word: int, head_words: int = 0) -> bytes:
    """Decode the `bytes` whose offset is in word `word` of the head. Refuse an offset into the first `head_words`."""
    start, length = _content_span(data, word, head_words)
    end = start + length
    padding = -length % 32
    if end + padding > len(data):
        raise Refused(f"the content of ABI word {word} runs past the data")
    if padding and data[end : end + padding].strip(b"\0"):
        raise Refused(f"the content of ABI word {word} has padding that is not zero")
    return data[start:end]


def text_at(data: bytes, word: int, head_words: int = 0) -> str:
    """Decode the `string` whose offset is in word `word` of the head."""
    try:
        return bytes_at(data, word, head_words).decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(f"the string of ABI word {word} is not UTF-8") from None


def rows_at(data: bytes, word: int, words_per_row: int, head_words: int = 0) -> list[bytes]:
    """Decode a `T[]` of a static T. Return the encoded words of each element."""
    start, count = _content_span(data, word, head_words)
    width = 32 * words_per_row
    end = start + count * width
    if end > len(data):
        raise Refused(f"the array of ABI word {word} runs past the data")
    return [data[row : row + width] for row in range(start, end, width)]


def _content_span(data: bytes, word: int, head_words: int) -> tuple[int, int]:
    """Return the start and the length of the content whose offset is in word `word` of the head."""
    offset = uint_at(data, word)
    if offset < 32 * max(head_words, word + 1):
        raise Refused(f"ABI word {word} must be an offset into the tail, but points into the head")
    # Check before slicing: an offset may be as large as a uint256.
    if offset % 32 or offset + 32 > len(data):
        raise Refused(f"ABI word {word} must be an offset inside the data and a multiple of 32")
    return offset + 32, int.from_bytes(data[offset : offset + 32], "big")
