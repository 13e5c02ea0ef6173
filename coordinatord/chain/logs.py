"""From a log to its event. Each event's declaration stands here as in the contract's interface.

A struct's fields are in the order of the declaration, and indexed values come first in all of them.
"""

import re
import struct
from binascii import unhexlify
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from common.abi import array_of_dynamic, bytes_at, call, dynamic, selector, topic
from common.address_book import AddressBook
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.chain import events as ev
from coordinatord.chain.rpc import ChainLog, Hash

# Reading the words of a log fast and strictly.
#
# `common.abi` reads one word per call, which is what rare events and calldata want. A backfill reads fifteen words of
# fifty thousand logs: here the indexed topics and the data's head are one run of bytes, unpacked in one step, and
# one mask over all of it finds any bit that does not belong to its value's type.
#
#     topics 1.. │ head of data │ tails
#     ◄─────── Words.read ──────►
#                ◄ offsets in the head count from here

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

    def read(self, log: ChainLog) -> list[Any]:
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

    def read_head(self, log: ChainLog) -> tuple[list[Any], bytes]:
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
    """Function that unpacks such words, and the mask of the bits that none of them may have set."""
    unset = b"".join(((1 << 256) - (1 << bits)).to_bytes(32, "big") for _, bits, _ in shapes)
    return struct.Struct(">" + "".join(code for code, _, _ in shapes)).unpack_from, int.from_bytes(unset)


def _text(raw: bytes) -> str:
    """A Solidity `string` is any bytes, and a provider may settle with a CID that is no UTF-8.

    That must not stop the index: what is no UTF-8, and NUL, which PostgreSQL's text cannot hold, reads as U+FFFD.
    """
    if raw.isalnum():
        return raw.decode("ascii")
    return raw.decode("utf-8", errors="replace").replace("\0", "\ufffd")


Decode = Callable[[ChainLog], ev.Event]

_PARAMETER: Final = re.compile(r"(\w+(?:\([\w,]+\)\[\])?) (indexed )?\w+")


def _declared(kind: type[ev.Event], parameters: str) -> tuple[str, Decode]:
    """Topic 0 as hex, and the function that decodes the rest."""
    found = _PARAMETER.findall(parameters)
    types = tuple(name for name, _ in found)
    if len(types) != len(kind.__struct_fields__):
        raise ValueError(f"{kind.__name__} has not as many fields as its declaration")
    words = Words(sum(1 for _, indexed in found if indexed), types)

    def decode(log: ChainLog) -> ev.Event:
        return kind(*words.read(log))

    return hex_of(topic(f"{kind.__name__}({','.join(types)})")), decode


def _asks_published() -> tuple[str, Decode]:
    words = Words(1, ("uint32", "uint64", "(uint32,uint32,uint128,uint128)[]"))
    row = struct.Struct(">28xI28xI16x16s16x16s")
    unset = int.from_bytes(b"".join(((1 << 256) - (1 << bits)).to_bytes(32, "big") for bits in (32, 32, 128, 128)))

    def decode(log: ChainLog) -> ev.Event:
        (provider_id, signed_at, offset), raw = words.read_head(log)
        quotes = tuple(
            ev.AskRates(model_id, sla, int.from_bytes(rate_in), int.from_bytes(rate_out))
            for model_id, sla, rate_in, rate_out in words.rows(raw, offset, row, unset)
        )
        return ev.AsksPublished(provider_id, signed_at, quotes)

    return hex_of(topic("AsksPublished(uint32,uint64,(uint32,uint32,uint128,uint128)[])")), decode


_RELAYED: Final = (
    _declared(ev.RelayerSet, "address indexed relayer, bool allowed"),
    _declared(ev.CallRefused, "uint256 indexed index, bytes reason"),
)
_JOBS: Final = dict(
    (
        *_RELAYED,
        _declared(
            ev.JobPosted,
            "bytes32 indexed jobId, address indexed owner, uint32 indexed modelId, bytes32 c, uint32 slaSecs,"
            " uint128 rateIn, uint128 rateOut, uint32 unitsIn, uint32 unitsOut, uint32 designated,"
            " uint64 expiresAt, uint16 feeBps, uint128 gasFee, string taskCid, bytes paySig",
        ),
        _declared(ev.JobClaimed, "bytes32 indexed jobId, uint32 indexed providerId, uint64 claimedAt"),
        _declared(
            ev.JobSettled,
            "bytes32 indexed jobId, uint32 indexed providerId, uint32 completionTok, uint256 cost,"
            " uint256 treasuryShare, uint256 refund, string resultCid",
        ),
        _declared(ev.JobCancelled, "bytes32 indexed jobId"),
        _declared(ev.JobFailed, "bytes32 indexed jobId, uint32 indexed providerId"),
        _declared(ev.JobReclaimed, "bytes32 indexed jobId, uint32 indexed providerId"),
        _declared(ev.PayoutCredited, "bytes32 indexed jobId, address indexed party, uint256 amount"),
        _declared(ev.CreditWithdrawn, "address indexed party, uint256 amount"),
        _declared(
            ev.ModelSet, "uint32 indexed modelId, string name, bool enabled, string ownedBy, string paramsSchema"
        ),
        _declared(ev.SlaSet, "uint32 indexed slaSecs, bool allowed"),
        _declared(ev.FeesSet, "uint16 feeBps, uint128 gasFee"),
        _declared(ev.TreasurySet, "address indexed treasury"),
        _declared(ev.TokenGasSet, "uint32 tokenGas"),
    )
)
_PROVIDERS: Final = dict(
    (
        *_RELAYED,
        _declared(ev.ProviderRegistered, "uint32 indexed providerId, address indexed operator"),
        _declared(ev.OperatorProposed, "uint32 indexed providerId, address indexed operator"),
        _declared(ev.OperatorChanged, "uint32 indexed providerId, address indexed operator"),
        _declared(ev.ProviderDeregistered, "uint32 indexed providerId"),
        _declared(ev.IdentitySet, "uint32 indexed providerId, bytes32 boxKey, bytes evidence, uint64 issuedAt"),
        _declared(ev.CapacityRequested, "uint32 indexed providerId, uint32 n, uint64 issuedAt"),
        _declared(ev.ProviderListed, "uint32 indexed providerId, bool listed"),
        _declared(ev.CeilingSet, "uint32 indexed providerId, uint32 ceiling"),
        _declared(ev.AllModelsAllowed, "uint32 indexed providerId, bool allowed"),
        _declared(ev.ModelAllowed, "uint32 indexed providerId, uint32 indexed modelId, bool allowed"),
        _declared(ev.ReputationSet, "uint32 indexed providerId, uint16 reputation"),
        _declared(ev.FailExcused, "uint32 indexed providerId, uint16 grace"),
        _declared(ev.PointPriceSet, "uint96 pointPrice"),
        _declared(ev.AllowlistSet, "bytes32 indexed key, uint8 status, string entry"),
        _declared(ev.JobRegistrySet, "address indexed jobRegistry"),
    )
)
_ASKS: Final = dict((*_RELAYED, _asks_published()))


class Decoder:
    """Decodes the logs of one deployment's registries."""

    def __init__(self, book: AddressBook) -> None:
        self.addresses = tuple(hex_of(a) for a in (book.job_registry, book.provider_registry, book.ask_registry))
        self._tables = dict(zip(self.addresses, (_JOBS, _PROVIDERS, _ASKS), strict=True))

    def decode(self, log: ChainLog) -> ev.Event | None:
        """The event; None for one that says nothing about the market (an owner's, a pause).

        Raises Refused for a log that is none of these registries', or that no registry could have written.
        """
        # Nodes write lower case; the second look-up is for the one that does not.
        table = self._tables.get(log.address) or self._tables.get(log.address.lower())
        if table is None:
            raise Refused(f"a log of {log.address} was not asked for")
        if not log.topics:
            raise Refused("a registry writes no log without topics")
        decode = table.get(log.topics[0]) or table.get(log.topics[0].lower())
        if decode is None:
            return None
        try:
            return decode(log)
        except Refused as wrong:
            raise Refused(f"log {log.log_index} of block {log.block_number} is malformed: {wrong}") from None


# What the three registries share: many calls in one transaction, and which of them were refused.

_RELAY: Final = selector("relay(bytes[])")
_CALL_REFUSED: Final = "0x" + topic("CallRefused(uint256,bytes)").hex()


class ReceiptLog(msgspec.Struct, frozen=True):
    """As much of a receipt's log as is read here."""

    address: str
    topics: list[Hash]
    data: str


def relay(calls: Sequence[bytes]) -> bytes:
    """Calldata that runs each of `calls` on the registry it is sent to; a refused one harms no other."""
    return call(_RELAY, array_of_dynamic([dynamic(one) for one in calls]))


def refused_calls(logs: Iterable[ReceiptLog], registry: bytes) -> dict[int, bytes]:
    """The refused calls of one `relay` transaction: place in `calls` → revert data."""
    address = "0x" + registry.hex()
    refused = {}
    for log in logs:
        if len(log.topics) == 2 and log.topics[0] == _CALL_REFUSED and log.address.lower() == address:
            try:
                refused[int(log.topics[1], 16)] = bytes_at(bytes.fromhex(log.data[2:]), 0)
            except (Refused, ValueError):
                # The event is our own contract's; a node that garbles it has told us that the call was refused.
                refused[int(log.topics[1], 16)] = b""
    return refused
