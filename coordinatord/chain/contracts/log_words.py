"""Words of a log, read fast and strictly; and logs of one event, read many at a time.

`common.abi` reads one word per call, which is what rare events and calldata want. A backfill reads fifteen words of
fifty thousand logs: here the indexed topics and the data's head are one run of bytes, unpacked in one step, and
one mask over all of it finds any bit that does not belong to its value's type.

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
# What struct reads at the end of a word, the bits that may be set in it, and what makes it a value.
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
_OFFSET: Final = ("Q", 64, None)  # of a dynamic value; more than 64 bits lead nowhere
_NARROW: Final = _STATIC["uint64"]  # what fits in 64 bits, as amounts mostly do, needs no second step


class Words:
    """The shape of one event: how many of its values are indexed, and the types of all, indexed ones first."""

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
        """The values of the event, of the types that its declaration says."""
        values, raw = self.read_head(log)
        for place, is_text in self._dynamics:  # written out, not called: half of a post's time is spent here
            start = self._data_at + _WORD + values[place]
            length = int.from_bytes(raw[start - _WORD : start])
            end = start + length
            padded = end + (-length & 31)
            if start & 31 or padded > len(raw):
                raise Refused("one of its values is not within it")
            if raw.count(0, end, padded) != padded - end:
                raise Refused("one of its values has padding that is not zero")
            value = raw[start:end]
            values[place] = as_text(value) if is_text else value
        return values

    def read_head(self, log: ChainLog) -> tuple[list[Any], bytes]:
        """The values, with offsets for the dynamic ones, and all bytes of the log but topic 0."""
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
        """The array at `offset`, of static structs: `row` unpacks one, `unset` masks the bits that none may set."""
        start = self._data_at + _WORD + offset
        count = int.from_bytes(raw[start - _WORD : start])
        end = start + count * row.size
        if start % _WORD or end > len(raw):
            raise Refused("its array is not within it")
        content = raw[start:end]
        for at in range(0, len(content), row.size):
            if int.from_bytes(content[at : at + row.size]) & unset:
                raise Refused("a value of its array is wider than its type")
        return list(row.iter_unpack(content))

    def layout(self, log: ChainLog) -> "Layout | None":
        """Where the values are in a log that `read` took, to read its like by; None where those need `read`, too."""
        values, raw = self.read_head(log)
        if self._has_bits or int.from_bytes(raw[: self._length]) & self._unset_narrow:
            return None  # bits beside a bit are no bytes; and wide values are rare
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
                return None  # its length would be a part of another value
            end = tail.start + tail.length
        return Layout.of([*heads, *tails], raw)


class Span(NamedTuple):
    """Bytes of one value in a log: how struct reads them, and the value's place in the declaration."""

    start: int
    length: int
    code: str
    place: int


@attrs.frozen
class Layout:
    """Values of logs that are alike, unpacked without a look at each word.

    Between the values of a log are bytes that say nothing: the beginnings of words, offsets, lengths, padding. Those of
    one log were checked one by one; in a log where they are the same, the values are in the same places.
    """

    _values: struct.Struct
    _ordered: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None
    """From their order in the log to that of the declaration, where the two differ."""
    _between: struct.Struct
    _same: tuple[bytes, ...]

    @classmethod
    def of(cls, spans: Sequence[Span], raw: bytes) -> "Layout":
        """Layout of a log in which the values are there, one behind the other."""
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
        """The values of each, texts as bytes; None where one is not alike. All have as many topics, and as much data,
        as the log that this was made of."""
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
    """All of them but their topics 0. Raises ValueError for what is not hex."""
    return unhexlify("".join([part[2:] for log in logs for part in (*log.topics[1:], log.data)]))


def _reading(shapes: Sequence[tuple[str, int, object]]) -> tuple[Callable[[bytes], tuple[Any, ...]], int]:
    """Function that unpacks such words, and the mask of the bits that none of them may have set."""
    unset = b"".join(((1 << 256) - (1 << bits)).to_bytes(_WORD, "big") for _, bits, _ in shapes)
    words = "".join(f"{_WORD - struct.calcsize(f'>{code}')}x{code}" for code, _, _ in shapes)
    return struct.Struct(">" + words).unpack_from, int.from_bytes(unset)


def as_text(raw: bytes) -> str:
    """A Solidity `string` is any bytes, and a provider may settle with a CID that is no UTF-8.

    That must not stop the index: what is no UTF-8, and NUL, which PostgreSQL's text cannot hold, reads as U+FFFD.
    """
    if raw.isalnum():
        return raw.decode("ascii")
    return raw.decode("utf-8", errors="replace").replace("\0", "\ufffd")
