"""Encode events as the contracts would, by eth_abi and the committed artifacts."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec.structs
from eth_abi.abi import encode
from eth_utils.abi import event_abi_to_log_topic

from coordinatord.chain.contracts import contract_events

ARTIFACTS = Path(__file__).parents[3] / "common" / "contracts" / "artifacts"
REGISTRIES = ("JobRegistry", "ProviderRegistry", "AskRegistry")


@cache
def declared_events(registry: str) -> dict[str, Any]:
    """Return the ABI entries of a registry's events, by name."""
    abi = json.loads((ARTIFACTS / f"{registry}.json").read_text())["abi"]
    return {entry["name"]: entry for entry in abi if entry["type"] == "event"}


def registry_of(event: contract_events.Event) -> str:
    return next(registry for registry in REGISTRIES if type(event).__name__ in declared_events(registry))


def log_of(event: contract_events.Event, addresses: dict[str, str]) -> dict[str, Any]:
    """Return address, topics and data of the event's log."""
    registry = registry_of(event)
    values = [_plain(value) for value in msgspec.structs.astuple(event)]
    return {"address": addresses[registry], **encoded(declared_events(registry)[type(event).__name__], values)}


def encoded(entry: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    types = [_type(parameter) for parameter in entry["inputs"]]
    indexed = [parameter["indexed"] for parameter in entry["inputs"]]
    topics = [encode([t], [v]) for t, v, i in zip(types, values, indexed, strict=True) if i]
    plain = [(t, v) for t, v, i in zip(types, values, indexed, strict=True) if not i]
    data = encode([t for t, _ in plain], [v for _, v in plain])
    return {
        "topics": ["0x" + topic.hex() for topic in (event_abi_to_log_topic(entry), *topics)],
        "data": "0x" + data.hex(),
    }


def _type(parameter: dict[str, Any]) -> str:
    if parameter["type"].startswith("tuple"):
        inner = ",".join(component["type"] for component in parameter["components"])
        return f"({inner}){parameter['type'].removeprefix('tuple')}"
    return str(parameter["type"])


def _plain(value: Any) -> Any:
    return [msgspec.structs.astuple(item) for item in value] if isinstance(value, tuple) else value
