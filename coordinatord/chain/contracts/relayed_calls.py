"""Encode and decode `relay` transactions of several calls, and find the refused calls in a receipt.

All three registries have the same `relay` function and event.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from common.abi import array_of_dynamic, bytes_at, call_data, dynamic_bytes, selector, topic, uint_at
from common.refusal import Refused
from coordinatord.chain.rpc.chain_data import Hash

_RELAY_SELECTOR: Final = selector("relay(bytes[])")
_CALL_REFUSED_TOPIC: Final = "0x" + topic("CallRefused(uint256,bytes)").hex()


class ReceiptLog(msgspec.Struct, frozen=True):
    """The fields of a receipt's log that this module reads."""

    address: str
    topics: list[Hash]
    data: str


def relay_calldata(calls: Sequence[bytes]) -> bytes:
    """Return calldata that runs each of `calls` on its registry. A refused call does not affect the others."""
    return call_data(_RELAY_SELECTOR, array_of_dynamic([dynamic_bytes(call) for call in calls]))


def decode_calls(calldata: bytes) -> list[bytes] | None:
    """Return the calls of a `relay` transaction, or None for other calldata. Raise Refused for a malformed `relay`."""
    if calldata[:4] != _RELAY_SELECTOR:
        return None
    arguments = calldata[4:]
    start = uint_at(arguments, 0, 32)
    items = arguments[start + 32 :]  # offsets are relative to the end of the length
    return [bytes_at(items, index) for index in range(uint_at(arguments[start:], 0, 16))]


def find_refused_calls(logs: Iterable[ReceiptLog], registry: bytes) -> dict[int, bytes]:
    """Return the revert data of the refused calls of one `relay` transaction, by position in `calls`."""
    address = "0x" + registry.hex()
    refused = {}
    for log in logs:
        if len(log.topics) == 2 and log.topics[0] == _CALL_REFUSED_TOPIC and log.address.lower() == address:
            try:
                refused[int(log.topics[1], 16)] = bytes_at(bytes.fromhex(log.data[2:]), 0)
            except (Refused, ValueError):
                # Our own contract emits the event, so even a garbled log means that the call was refused.
                refused[int(log.topics[1], 16)] = b""
    return refused
