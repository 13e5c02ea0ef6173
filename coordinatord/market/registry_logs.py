"""The events of admins, read from a deployment's first block to the head: mappings can only be listed by them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from coordinatord.chain.rpc_errors import Meaning, RpcError
from coordinatord.market.contracts import Contract, Event, read_event, topic
from coordinatord.market.node import Node

# By contract; a contract's log with another topic is none of an admin's.
_EVENTS: Final = {
    "ProviderRegistry": ("OwnershipTransferred", "RelayerSet", "AllowlistSet", "ModelAllowed"),
    "JobRegistry": ("OwnershipTransferred", "RelayerSet", "ModelSet", "SlaSet"),
    "AskRegistry": ("OwnershipTransferred", "RelayerSet"),
}
_TOO_MUCH: Final = (Meaning.RANGE_TOO_WIDE, Meaning.INTERNAL)


def admin_events(node: Node, registries: Mapping[str, Contract], first: int, last: int, span: int) -> Iterator[Event]:
    """In the order of the chain. `span`: the widest range of blocks asked for; halved where a node refuses it."""
    names = {contract.address.lower(): name for name, contract in registries.items()}
    known = {(name, topic(name, event)): event for name, events in _EVENTS.items() for event in events}
    topics = sorted({hashed for _, hashed in known})
    while first <= last:
        end = min(last, first + span - 1)
        try:
            logs = _logs(node, sorted(names), topics, first, end)
        except RpcError as error:
            if error.meaning not in _TOO_MUCH or span == 1:
                raise
            span = max(1, span // 2)
            continue
        for log in logs:
            name = names[log["address"].lower()]  # a node that answers with others' logs is not believed
            event = known.get((name, log["topics"][0]))
            if event is not None:
                yield read_event(name, event, log)
        first = end + 1


def _logs(node: Node, addresses: list[str], topics: list[str], first: int, last: int) -> list[dict[str, Any]]:
    asked = {"address": addresses, "topics": [topics], "fromBlock": hex(first), "toBlock": hex(last)}
    logs = node.request("eth_getLogs", asked)
    return sorted(logs, key=lambda log: (int(log["blockNumber"], 16), int(log["logIndex"], 16)))
