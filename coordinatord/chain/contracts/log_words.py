"""Fast, strict decoding of event logs, one by one or many of the same event at once.

`common.abi` reads one word per call, which suits rare events and calldata. A backfill reads fifteen words in each of
fifty thousand logs. So the indexed topics and the head of the data form one byte string that is unpacked in one step,
and one mask over the whole string finds any bit that does not belong to its value's type.

    topics 1.. │ head of data │ tails
    ◄─────── Words.read ──────►
               ◄ offsets in the head count from here
"""

import struct
from binascii import unhexlify
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import attrs

from common.refusal import Refused
from coordinatord.chain.rpc.chain_data import ChainLog

_WORD: Final = 32
# Struct code of each type at the end of a word, the number of bits that may be set, and the conversion to its value.
_STATIC: Final[dict[str, tuple[str, int, Callable[[Any], Any] | None]]] = {
    "bool": ("?", 1, None),
    "uint8": ("B", 8, None),
    "uint16": ("H", 16, None),
    "uint32": ("I", 32, None),
    "uint64": ("Q", 64, None),
    "uint96": ("12s", 96, int.from_bytes),
    "uint128": ("16s", 128, int.from_bytes),
    "uint256": ("32s", 256, int.from_bytes),
    "address": ("20s", 160, None),
    "bytes32": ("32s", 256, None),
}
# Offset of a dynamic value, at most 64 bits.
_OFFSET: Final = ("Q", 64, None)
# Most amounts fit in 64 bits and need no conversion.
_NARROW: Final = _STATIC["uint64"]


class Words:
    """Layout of one event: the number of indexed values, and the types of all values, indexed ones first."""

    def __init__(self, indexed: int, types: tuple[str, ...]) -> None:
        shapes = [_STATIC.get(kind, _OFFSET) for kind in types]
        narrow = [_NARROW if convert else (code, bits, None) for code, bits, convert in shapes]
        self._topics = indexed + 1
        self._length = _WORD * len(types)
        self._unpack, self._unset = _reading(shapes)
        self._unpack_narrow, self._unset_narrow = _reading(narrow)
        self._data_at = _WORD * indexed
        self._converts = [(place, convert) for place, (_, _, convert) in enumerate(shapes) if convert is not None]
        self._dynamics = [(place, kind == "string") for place, kind in enumerate(types) if kind in ("string", "bytes")]
        self._narrow = [(code, struct.calcsize(f">{code}")) for code, _, _ in narrow]
        self._has_bits = "bool" in types
        self.texts = [place for place, is_text in self._dynamics if is_text]

    def read(self, log: ChainLog) -> list[Any]:
        """Return the event's values, with the types of its declaration."""
        values, raw = self.read_head(log)
        # Inlined, because this loop takes half the time of a post.
        for place, is_text in self._dynamics:
            start = self._data_at + _WORD + values[place]
            length = int.from_bytes(raw[start - _WORD : start])
            end = start + length
            padded = end + (-length & 31)
            if start & 31 or padded > len(raw):
                raise Refused("one of its values lies outside of the log")
            if raw.count(0, end, padded) != padded - end:
                raise Refused("one of its values has padding that is not zero")
            value = raw[start:end]
            values[place] = as_text(value) if is_text else value
        return values

    def read_head(self, log: ChainLog) -> tuple[list[Any], bytes]:
        """Return the values, with offsets in place of dynamic values, and all bytes of the log except topic 0."""
        topics = log.topics
        if len(topics) != self._topics:
            raise Refused(f"it has {len(topics)} topics where its event has {self._topics}")
        try:
            raw = _bytes_of([log])
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
        """Return the array of static structs at `offset`. `row` unpacks one struct. `unset` masks the bits that must
        be zero."""
        start = self._data_at + _WORD + offset
        count = int.from_bytes(raw[start - _WORD : start])
        end = start + count * row.size
        if start % _WORD or end > len(raw):
            raise Refused("its array lies outside of the log")
        content = raw[start:end]
        for at in range(0, len(content), row.size):
            if int.from_bytes(content[at : at + row.size]) & unset:
                raise Refused("a value of its array is wider than its type")
        return list(row.iter_unpack(content))

    def layout(self, log: ChainLog) -> "Layout | None":
        """Return the positions of the values in a log that `read` accepts, to decode similar logs. Return None for
        logs that need `read`."""
        values, raw = self.read_head(log)
        if self._has_bits or int.from_bytes(raw[: self._length]) & self._unset_narrow:
            # Bits next to a boolean are not compared, and wide values are rare.
            return None
        heads = [
            Span(_WORD * (place + 1) - size, size, code, place)
            for place, (code, size) in enumerate(self._narrow)
            if place not in dict(self._dynamics)
        ]
        tails = []
        for place, _ in self._dynamics:
            start = self._data_at + _WORD + values[place]
            length = int.from_bytes(raw[start - _WORD : start])
            tails.append(Span(start, length, f"{length}s", place))
        tails.sort()
        end = self._length
        for tail in tails:
            if tail.start - _WORD < end:
                # The length of the tail would be part of another value.
                return None
            end = tail.start + tail.length
        return Layout.of([*heads, *tails], raw)


class Span(NamedTuple):
    """Bytes of one value in a log, its struct code, and its place in the declaration."""

    start: int
    length: int
    code: str
    place: int


@attrs.frozen
class Layout:
    """Decoder of logs with the same layout, without a check of each word.

    The bytes between the values are padding, offsets and lengths. They were checked in the first log. A log in which
    they are equal has its values in the same places.
    """

    _values: struct.Struct
    _ordered: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None
    """From their order in the log to that of the declaration, where the two differ."""
    _between: struct.Struct
    _same: tuple[bytes, ...]

    @classmethod
    def of(cls, spans: Sequence[Span], raw: bytes) -> "Layout":
        """Return the layout of a log with values at these consecutive spans."""
        values, between, at = ">", ">", 0
        for span in spans:
            values += f"{span.start - at}x{span.code}"
            between += f"{span.start - at}s{span.length}x"
            at = span.start + span.length
        values += f"{len(raw) - at}x"
        between += f"{len(raw) - at}s"
        places = [span.place for span in spans]
        turned = [places.index(place) for place in range(len(places))]
        ordered = itemgetter(*turned) if turned != sorted(turned) else None
        around = struct.Struct(between)
        return cls(struct.Struct(values), ordered, around, around.unpack(raw))

    def read(self, logs: Sequence[ChainLog]) -> Iterator[tuple[Any, ...]] | None:
        """Return the values of each log, with strings as bytes, or None if a log has another layout.

        All logs must have as many topics and as much data as the log of this layout.
        """
        try:
            raw = _bytes_of(logs)
        except ValueError:
            return None
        if len(raw) != self._values.size * len(logs):
            return None
        if not all(map(self._same.__eq__, self._between.iter_unpack(raw))):
            return None
        values = self._values.iter_unpack(raw)
        return values if self._ordered is None else map(self._ordered, values)


def _bytes_of(logs: Sequence[ChainLog]) -> bytes:
    """Return the bytes of all logs except topic 0. Raise ValueError for invalid hex."""
    return unhexlify("".join([part[2:] for log in logs for part in (*log.topics[1:], log.data)]))


def _reading(shapes: Sequence[tuple[str, int, object]]) -> tuple[Callable[[bytes], tuple[Any, ...]], int]:
    """Return a function that unpacks these words, and the mask of the bits that must be zero."""
    unset = b"".join(((1 << 256) - (1 << bits)).to_bytes(_WORD, "big") for _, bits, _ in shapes)
    words = "".join(f"{_WORD - struct.calcsize(f'>{code}')}x{code}" for code, _, _ in shapes)
    return struct.Struct(">" + words).unpack_from, int.from_bytes(unset)


def as_text(raw: bytes) -> str:
    """Decode a Solidity `string`, which may hold any bytes. A provider may settle with a CID that is not UTF-8.

    Invalid bytes must not stop the index, so they read as U+FFFD. So does NUL, which PostgreSQL's text cannot store.
    """
    if raw.isalnum():
        return raw.decode("ascii")
    return raw.decode("utf-8", errors="replace").replace("\0", "\ufffd")
