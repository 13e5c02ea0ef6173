"""Decode logs into events. The declarations below match the contracts' interfaces.

The fields of each struct are in the order of the declaration, and indexed values come first.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from common.abi import topic
from common.address_book import AddressBook
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.contracts.log_words import LogLayout, WordDecoder, decode_solidity_string
from coordinatord.chain.rpc.chain_data import ChainLog

_PARAMETER_PATTERN: Final = re.compile(r"(\w+|\([\w,]+\)\[\]) (indexed )?\w+")
# Smaller groups of logs with the same layout are faster to decode one by one.
_MIN_BATCH_LOGS: Final = 8


class _EventReader:
    """Reads the logs of one event."""

    def __init__(self, event_type: type[contract_events.Event], word_decoder: WordDecoder) -> None:
        self._event_type = event_type
        self._word_decoder = word_decoder

    def read(self, log: ChainLog) -> contract_events.Event:
        return self._event_type(*self._word_decoder.read(log))

    def find_layout(self, log: ChainLog) -> LogLayout | None:
        return self._word_decoder.find_layout(log)

    def build_events(self, rows: Iterable[tuple[Any, ...]]) -> list[contract_events.Event]:
        """Return the events of rows that a layout decoded."""
        event_type, string_positions = self._event_type, self._word_decoder.string_positions
        if not string_positions:
            return [event_type(*values) for values in rows]
        events = []
        for values in map(list, rows):
            for position in string_positions:
                values[position] = decode_solidity_string(values[position])
            events.append(event_type(*values))
        return events


class _AsksReader(_EventReader):
    """Reads the logs of an event with an array of quote structs."""

    _ROW_STRUCT: Final = struct.Struct(">28xI28xI16x16s16x16s")
    _ZERO_MASK: Final = int.from_bytes(
        b"".join(((1 << 256) - (1 << bits)).to_bytes(32, "big") for bits in (32, 32, 128, 128))
    )

    def read(self, log: ChainLog) -> contract_events.Event:
        (provider_id, signed_at, offset), raw = self._word_decoder.read_head(log)
        quotes = tuple(
            contract_events.AskRates(model_id, sla, int.from_bytes(rate_in), int.from_bytes(rate_out))
            for model_id, sla, rate_in, rate_out in self._word_decoder.decode_rows(
                raw, offset, self._ROW_STRUCT, self._ZERO_MASK
            )
        )
        return contract_events.AsksPublished(provider_id, signed_at, quotes)

    def find_layout(self, log: ChainLog) -> None:
        return None


def _declare_event(
    event_type: type[contract_events.Event], parameters: str, reader: type[_EventReader] = _EventReader
) -> tuple[str, _EventReader]:
    """Return topic 0 as hex, and the reader of the event's logs."""
    found = _PARAMETER_PATTERN.findall(parameters)
    types = tuple(name for name, _ in found)
    if len(types) != len(event_type.__struct_fields__):
        raise ValueError(f"{event_type.__name__} must have as many fields as its declaration")
    word_decoder = WordDecoder(sum(1 for _, indexed in found if indexed), types)
    return hex_of(topic(f"{event_type.__name__}({','.join(types)})")), reader(event_type, word_decoder)


_RELAY_EVENTS: Final = (
    _declare_event(contract_events.RelayerSet, "address indexed relayer, bool allowed"),
    _declare_event(contract_events.CallRefused, "uint256 indexed index, bytes reason"),
)
_JOB_EVENTS: Final = dict(
    (
        *_RELAY_EVENTS,
        _declare_event(
            contract_events.JobPosted,
            "bytes32 indexed jobId, address indexed owner, uint32 indexed modelId, bytes32 c, uint32 slaSecs,"
            " uint128 rateIn, uint128 rateOut, uint32 unitsIn, uint32 unitsOut, uint32 designated,"
            " uint64 expiresAt, uint16 feeBps, uint128 gasFee, string taskCid, bytes paySig",
        ),
        _declare_event(
            contract_events.JobClaimed, "bytes32 indexed jobId, uint32 indexed providerId, uint64 claimedAt"
        ),
        _declare_event(
            contract_events.JobSettled,
            "bytes32 indexed jobId, uint32 indexed providerId, uint32 completionTok, uint256 cost,"
            " uint256 treasuryShare, uint256 refund, string resultCid",
        ),
        _declare_event(contract_events.JobCancelled, "bytes32 indexed jobId"),
        _declare_event(contract_events.JobFailed, "bytes32 indexed jobId, uint32 indexed providerId"),
        _declare_event(contract_events.JobReclaimed, "bytes32 indexed jobId, uint32 indexed providerId"),
        _declare_event(contract_events.OrderDiscarded, "bytes32 indexed jobId, address indexed owner"),
        _declare_event(contract_events.PayoutCredited, "bytes32 indexed jobId, address indexed party, uint256 amount"),
        _declare_event(contract_events.CreditWithdrawn, "address indexed party, uint256 amount"),
        _declare_event(
            contract_events.ModelSet,
            "uint32 indexed modelId, string name, bool enabled, string ownedBy, string paramsSchema",
        ),
        _declare_event(contract_events.SlaSet, "uint32 indexed slaSecs, bool allowed"),
        _declare_event(contract_events.FeesSet, "uint16 feeBps, uint128 gasFee"),
        _declare_event(contract_events.TreasurySet, "address indexed treasury"),
        _declare_event(contract_events.TokenGasSet, "uint32 tokenGas"),
    )
)
_PROVIDER_EVENTS: Final = dict(
    (
        *_RELAY_EVENTS,
        _declare_event(contract_events.ProviderRegistered, "uint32 indexed providerId, address indexed operator"),
        _declare_event(contract_events.OperatorProposed, "uint32 indexed providerId, address indexed operator"),
        _declare_event(contract_events.OperatorChanged, "uint32 indexed providerId, address indexed operator"),
        _declare_event(contract_events.ProviderDeregistered, "uint32 indexed providerId"),
        _declare_event(
            contract_events.IdentitySet, "uint32 indexed providerId, bytes32 boxKey, bytes evidence, uint64 issuedAt"
        ),
        _declare_event(contract_events.CapacityRequested, "uint32 indexed providerId, uint32 n, uint64 issuedAt"),
        _declare_event(contract_events.ProviderListed, "uint32 indexed providerId, bool listed"),
        _declare_event(contract_events.CeilingSet, "uint32 indexed providerId, uint32 ceiling"),
        _declare_event(contract_events.AllModelsAllowed, "uint32 indexed providerId, bool allowed"),
        _declare_event(contract_events.ModelAllowed, "uint32 indexed providerId, uint32 indexed modelId, bool allowed"),
        _declare_event(contract_events.StandingSet, "uint32 indexed providerId, uint16 reputation, uint16 grace"),
        _declare_event(contract_events.PointPriceSet, "uint96 pointPrice"),
        _declare_event(contract_events.AllowlistSet, "bytes32 indexed key, uint8 status, string entry"),
        _declare_event(contract_events.JobRegistrySet, "address indexed jobRegistry"),
    )
)
_ASK_EVENTS: Final = dict(
    (
        *_RELAY_EVENTS,
        _declare_event(
            contract_events.AsksPublished,
            "uint32 indexed providerId, uint64 signedAt, (uint32,uint32,uint128,uint128)[] quotes",
            _AsksReader,
        ),
    )
)


class LogDecoder:
    """Decodes the logs of one deployment's registries."""

    def __init__(self, book: AddressBook) -> None:
        self.addresses = tuple(hex_of(a) for a in (book.job_registry, book.provider_registry, book.ask_registry))
        self._tables = dict(zip(self.addresses, (_JOB_EVENTS, _PROVIDER_EVENTS, _ASK_EVENTS), strict=True))

    def decode(self, log: ChainLog) -> contract_events.Event | None:
        """Return the event, or None for an event that does not concern the market (an ownership change, a pause).

        Raise Refused for a log of another contract, and for a log that no registry could have written.
        """
        reader = self._find_reader(log)
        if reader is None:
            return None
        try:
            return reader.read(log)
        except Refused as wrong:
            raise Refused(f"log {log.log_index} of block {log.block_number} is malformed: {wrong}") from None

    def decode_all(self, logs: Sequence[ChainLog]) -> list[contract_events.Event | None]:
        """Return the event of each log. Similar logs, such as the posts of a busy market, are decoded together."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for position, log in enumerate(logs):
            groups.setdefault((log.address, log.topics[:1], len(log.topics), len(log.data)), []).append(position)
        events: list[contract_events.Event | None] = [None] * len(logs)
        for positions in groups.values():
            batch = [logs[position] for position in positions]
            for position, event in zip(positions, self._decode_batch(batch) or map(self.decode, batch), strict=True):
                events[position] = event
        return events

    def _decode_batch(self, logs: Sequence[ChainLog]) -> list[contract_events.Event] | None:
        """Return the events of logs of one event and length, or None if they must be decoded one by one."""
        if len(logs) < _MIN_BATCH_LOGS or self.decode(logs[0]) is None:
            return None
        reader = self._find_reader(logs[0])
        layout = reader and reader.find_layout(logs[0])
        rows = layout and layout.read(logs)
        return reader.build_events(rows) if reader and rows else None

    def _find_reader(self, log: ChainLog) -> _EventReader | None:
        # Nodes usually write lower case. The second look-up covers any other node.
        table = self._tables.get(log.address) or self._tables.get(log.address.lower())
        if table is None:
            raise Refused(f"a log of {log.address} was not requested")
        if not log.topics:
            raise Refused("the log has no topics, but every registry event has one")
        return table.get(log.topics[0]) or table.get(log.topics[0].lower())
