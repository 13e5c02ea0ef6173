"""Events of admin calls, which are the only list of a registry's relayers, models, windows and escrow keys."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from web3 import Web3
from web3.contract.contract import ContractEvent
from web3.types import LogReceipt

from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.market.contracts import Contract

_EVENTS: Final = {
    "ProviderRegistry": ("OwnershipTransferred", "RelayerSet", "AllowlistSet", "ModelAllowed"),
    "JobRegistry": ("OwnershipTransferred", "RelayerSet", "ModelSet", "SlaSet"),
    "AskRegistry": ("OwnershipTransferred", "RelayerSet"),
}
_RANGE_ERRORS: Final = (Meaning.RANGE_TOO_WIDE, Meaning.INTERNAL)


@attrs.frozen(slots=True)
class Event:
    """One decoded log of a registry. Its addresses are checksummed."""

    contract: str
    name: str
    values: Mapping[str, Any]
    block: int
    transaction: str


def admin_events(node: Web3, registries: Mapping[str, Contract], first: int, last: int, span: int) -> Iterator[Event]:
    """Yield the events from block `first` to `last`, in the order of the chain.

    `span`: most blocks in one request. A node that rejects a range gets half of it.
    """
    known = _by_address_and_topic(node, registries)
    addresses = [contract.address for contract in registries.values()]
    topics = sorted({topic for _, topic in known})
    while first <= last:
        end = min(last, first + span - 1)
        try:
            logs = node.eth.get_logs({"address": addresses, "topics": [topics], "fromBlock": first, "toBlock": end})
        except RpcError as error:
            if error.meaning not in _RANGE_ERRORS or span == 1:
                raise
            span = max(1, span // 2)
            continue
        for log in sorted(logs, key=lambda log: (log["blockNumber"], log["logIndex"])):
            # A node may send logs outside of the filter.
            found = known.get((log["address"], log["topics"][0].to_0x_hex()))
            if found is not None:
                yield _read(*found, log)
        first = end + 1


def _by_address_and_topic(
    node: Web3, registries: Mapping[str, Contract]
) -> dict[tuple[str, str], tuple[str, ContractEvent]]:
    known: dict[tuple[str, str], tuple[str, ContractEvent]] = {}
    for name, contract in registries.items():
        events = contract.on(node).events
        for event_name in _EVENTS[name]:
            event = events[event_name]()
            known[contract.address, str(event.topic)] = (name, event)
    return known


def _read(contract: str, event: ContractEvent, log: LogReceipt) -> Event:
    decoded = event.process_log(log)
    return Event(contract, event.event_name, decoded["args"], log["blockNumber"], log["transactionHash"].to_0x_hex())
