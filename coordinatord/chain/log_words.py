"""Reading the words of a log fast and strictly.

`common.abi` reads one word per call, which is what rare events and calldata want. A backfill reads fifteen words of
fifty thousand logs: here the indexed topics and the data's head are one run of bytes, unpacked in one step, and
one mask over all of it finds any bit that does not belong to its value's type.

    topics 1.. │ head of data │ tails
    ◄─────── Words.read ──────►
               ◄ offsets in the head count from here
"""

import struct
from binascii import unhexlify
from collections.abc import Callable, Sequence
from typing import Any, Final

from common.refusal import Refused
from coordinatord.chain.blocks import Log

# What struct reads from the end of a word, the bits that may be set in it, and what makes it a value.
_STATIC: Final[dict[str, tuple[str, int, Callable[[Any], Any] | None]]] = {
    "bool": ("31x?", 1, None),
    "uint8": ("31xB", 8, None),
    "uint16": ("30xH", 16, None),
    "uint32": ("28xI", 32, None),
    "uint64": ("24xQ", 64, None),
    "uint96": ("20x12s", 96, int.from_bytes),
    "uint128": ("16x16s", 128, int.from_bytes),
    "uint256": ("32s", 256, int.from_bytes),
    "address": ("12x20s", 160, None),
    "bytes32": ("32s", 256, None),
}
_OFFSET: Final = ("24xQ", 64, None)  # of a dynamic value; more than 64 bits lead nowhere
_NARROW: Final = _STATIC["uint64"]  # what fits in 64 bits, as amounts mostly do, needs no second step


class Words:
    """The shape of one event: how many of its values are indexed, and the types of all, indexed ones first."""

    def __init__(self, indexed: int, types: tuple[str, ...]) -> None:
        shapes = [_STATIC.get(kind, _OFFSET) for kind in types]
        narrow = [_NARROW if convert else (code, bits, None) for code, bits, convert in shapes]
        self._topics = indexed + 1
        self._length = 32 * len(types)
        self._unpack, self._unset = _reading(shapes)
        self._unpack_narrow, self._unset_narrow = _reading(narrow)
        self._data_at = 32 * indexed
        self._converts = [(place, convert) for place, (_, _, convert) in enumerate(shapes) if convert is not None]
        self._dynamics = [(place, kind == "string") for place, kind in enumerate(types) if kind in ("string", "bytes")]

    def read(self, log: Log) -> list[Any]:
        """The values of the event, of the types that its declaration says."""
        values, raw = self.read_head(log)
        for place, is_text in self._dynamics:  # written out, not called: half of a post's time is spent here
            start = self._data_at + 32 + values[place]
            length = int.from_bytes(raw[start - 32 : start])
            end = start + length
            padded = end + (-length & 31)
            if start & 31 or padded > len(raw):
                raise Refused("one of its values is not within it")
            if raw.count(0, end, padded) != padded - end:
                raise Refused("one of its values has padding that is not zero")
            value = raw[start:end]
            values[place] = _text(value) if is_text else value
        return values

    def read_head(self, log: Log) -> tuple[list[Any], bytes]:
        """The values, with offsets for the dynamic ones, and all bytes of the log but topic 0."""
        topics = log.topics
        if len(topics) != self._topics:
            raise Refused(f"it has {len(topics)} topics where its event has {self._topics}")
        try:
            raw = unhexlify("".join([topic[2:] for topic in topics[1:]]) + log.data[2:])
        except ValueError:
            raise Refused("it is not hex") from None
        if len(raw) < self._length:
            raise Refused(f"its {len(raw)} bytes are fewer than the {self._length} of its event's head")
        head = int.from_bytes(raw[: self._length])
        if not head & self._unset_narrow:
            return list(self._unpack_narrow(raw)), raw
        if head & self._unset:
            raise Refused("one of its values is wider than its type")
        values = list(self._unpack(raw))
        for place, convert in self._converts:
            values[place] = convert(values[place])
        return values, raw

    def rows(self, raw: bytes, offset: int, row: struct.Struct, unset: int) -> list[tuple[Any, ...]]:
        """The array at `offset`, of static structs: `row` unpacks one, `unset` masks the bits that none may set."""
        start = self._data_at + 32 + offset
        count = int.from_bytes(raw[start - 32 : start])
        end = start + count * row.size
        if start % 32 or end > len(raw):
            raise Refused("its array is not within it")
        content = raw[start:end]
        for at in range(0, len(content), row.size):
            if int.from_bytes(content[at : at + row.size]) & unset:
                raise Refused("a value of its array is wider than its type")
        return list(row.iter_unpack(content))


def _reading(shapes: Sequence[tuple[str, int, object]]) -> tuple[Callable[[bytes], tuple[Any, ...]], int]:
    """What unpacks such words, and the mask of the bits that none of them may have set."""
    unset = b"".join(((1 << 256) - (1 << bits)).to_bytes(32, "big") for _, bits, _ in shapes)
    return struct.Struct(">" + "".join(code for code, _, _ in shapes)).unpack_from, int.from_bytes(unset)


def _text(raw: bytes) -> str:
    """A Solidity `string` is any bytes, and a provider may settle with a CID that is no UTF-8.

    That must not stop the index: what is no UTF-8, and NUL, which PostgreSQL's text cannot hold, reads as U+FFFD.
    """
    if raw.isalnum():
        return raw.decode("ascii")
    return raw.decode("utf-8", errors="replace").replace("\0", "\ufffd")
