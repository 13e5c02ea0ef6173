"""Read the events of admin calls. Only these events list a registry's relayers, models, windows and escrow keys."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from web3 import Web3
from web3.contract.contract import ContractEvent
from web3.types import LogReceipt

from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind
from coordinatord.market.contracts import Contract

_ADMIN_EVENTS: Final = {
    "ProviderRegistry": ("OwnershipTransferred", "RelayerSet", "AllowlistSet", "ModelAllowed"),
    "JobRegistry": ("OwnershipTransferred", "RelayerSet", "ModelSet", "SlaSet"),
    "AskRegistry": ("OwnershipTransferred", "RelayerSet"),
}
_RANGE_ERRORS: Final = (RpcErrorKind.RANGE_TOO_WIDE, RpcErrorKind.INTERNAL)


@attrs.frozen(slots=True)
class AdminEvent:
    """One decoded log of a registry. Its addresses are checksummed."""

    contract: str
    name: str
    values: Mapping[str, Any]
    block: int
    transaction: str


def read_admin_events(
    node: Web3, registries: Mapping[str, Contract], first: int, last: int, log_range_blocks: int
) -> Iterator[AdminEvent]:
    """Yield the events from block `first` to `last`, in the order of the chain.

    `log_range_blocks`, the maximum number of blocks in one request, is halved whenever the node rejects a range.
    """
    known = _index_events(node, registries)
    addresses = [contract.address for contract in registries.values()]
    topics = sorted({topic for _, topic in known})
    while first <= last:
        end = min(last, first + log_range_blocks - 1)
        try:
            logs = node.eth.get_logs({"address": addresses, "topics": [topics], "fromBlock": first, "toBlock": end})
        except RpcError as error:
            if error.kind not in _RANGE_ERRORS or log_range_blocks == 1:
                raise
            log_range_blocks = max(1, log_range_blocks // 2)
            continue
        for log in sorted(logs, key=lambda log: (log["blockNumber"], log["logIndex"])):
            # Skip logs outside of the filter, which a faulty node may send.
            found = known.get((log["address"], log["topics"][0].to_0x_hex()))
            if found is not None:
                yield _decode_log(*found, log)
        first = end + 1


def _index_events(node: Web3, registries: Mapping[str, Contract]) -> dict[tuple[str, str], tuple[str, ContractEvent]]:
    known: dict[tuple[str, str], tuple[str, ContractEvent]] = {}
    for name, contract in registries.items():
        events = contract.bind(node).events
        for event_name in _ADMIN_EVENTS[name]:
            event = events[event_name]()
            known[contract.address, str(event.topic)] = (name, event)
    return known


def _decode_log(contract: str, event: ContractEvent, log: LogReceipt) -> AdminEvent:
    decoded = event.process_log(log)
    return AdminEvent(
        contract, event.event_name, decoded["args"], log["blockNumber"], log["transactionHash"].to_0x_hex()
    )
