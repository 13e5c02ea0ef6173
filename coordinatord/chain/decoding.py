"""From a log to its event. Each event's declaration stands here as in the contract's interface.

A struct's fields are in the order of the declaration, and indexed values come first in all of them.
"""

import re
import struct
from collections.abc import Callable
from typing import Final

from common.abi import topic
from common.address_book import AddressBook
from common.refusal import Refused
from common.scalars import hex_of
from coordinatord.chain import events as ev
from coordinatord.chain.blocks import Log
from coordinatord.chain.log_words import Words

Decode = Callable[[Log], ev.Event]

_PARAMETER: Final = re.compile(r"(\w+(?:\([\w,]+\)\[\])?) (indexed )?\w+")


def _declared(kind: type[ev.Event], parameters: str) -> tuple[str, Decode]:
    """Topic 0 as hex, and the function that decodes the rest."""
    found = _PARAMETER.findall(parameters)
    types = tuple(name for name, _ in found)
    if len(types) != len(kind.__struct_fields__):
        raise ValueError(f"{kind.__name__} has not as many fields as its declaration")
    words = Words(sum(1 for _, indexed in found if indexed), types)

    def decode(log: Log) -> ev.Event:
        return kind(*words.read(log))

    return hex_of(topic(f"{kind.__name__}({','.join(types)})")), decode


def _asks_published() -> tuple[str, Decode]:
    words = Words(1, ("uint32", "uint64", "(uint32,uint32,uint128,uint128)[]"))
    row = struct.Struct(">28xI28xI16x16s16x16s")
    unset = int.from_bytes(b"".join(((1 << 256) - (1 << bits)).to_bytes(32, "big") for bits in (32, 32, 128, 128)))

    def decode(log: Log) -> ev.Event:
        (provider_id, signed_at, offset), raw = words.read_head(log)
        quotes = tuple(
            ev.Ask(model_id, sla, int.from_bytes(rate_in), int.from_bytes(rate_out))
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

    def decode(self, log: Log) -> ev.Event | None:
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
