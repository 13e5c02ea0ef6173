"""Calls that are relayed in one transaction, and which of them were refused. All three registries share this."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from common.abi import array_of_dynamic, bytes_at, call, dynamic, selector, topic, uint_at
from common.refusal import Refused
from coordinatord.chain.rpc.chain_data import Hash

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


def calls_of(calldata: bytes) -> list[bytes] | None:
    """The calls of a `relay` transaction; None for calldata that is no `relay`. Raises Refused when it is malformed."""
    if calldata[:4] != _RELAY:
        return None
    arguments = calldata[4:]
    start = uint_at(arguments, 0, 32)
    items = arguments[start + 32 :]  # their offsets count from behind the length
    return [bytes_at(items, place) for place in range(uint_at(arguments[start:], 0, 16))]


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
