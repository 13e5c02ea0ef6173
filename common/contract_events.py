"""Decode events and return values of the contracts into dicts by field name, using the ABI."""

from collections.abc import Mapping, Sequence
from typing import Any

from common import abi
from common.artifacts import Artifact, event_topic, selector
from common.messages.jobs import Order
from common.refusal import Refused


def call_data(artifact: Artifact, function: str, *words: abi.Words) -> bytes:
    return abi.call_data(selector(artifact, function), *words)


def event_values(artifact: Artifact, event: str, topics: Sequence[bytes], data: bytes) -> dict[str, Any]:
    """Return all fields of an event, including indexed ones. Refuse the log of another event."""
    (entry,) = (each for each in artifact.abi if each["type"] == "event" and each["name"] == event)
    indexed = [field for field in entry["inputs"] if field["indexed"]]
    if not topics or topics[0] != event_topic(artifact, event) or len(topics) != 1 + len(indexed):
        raise Refused(f"the log must be a log of the event {event}")
    plain = [field for field in entry["inputs"] if not field["indexed"]]
    return _decode_values(indexed, b"".join(topics[1:])) | _decode_values(plain, data)


def returned_values(artifact: Artifact, function: str, data: bytes) -> dict[str, Any]:
    """Return the values that a function returned, by name. For a single static struct, return the struct's fields."""
    (entry,) = (each for each in artifact.abi if each["type"] == "function" and each["name"] == function)
    outputs = entry["outputs"]
    if len(outputs) == 1 and outputs[0]["type"] == "tuple":
        outputs = outputs[0]["components"]
    return _decode_values(outputs, data)


def order_of(posted: Mapping[str, Any]) -> Order:
    """Return the order of a JobPosted event."""
    return Order(
        c=posted["c"],
        model_id=posted["modelId"],
        sla_secs=posted["slaSecs"],
        rate_in=posted["rateIn"],
        rate_out=posted["rateOut"],
        units_in=posted["unitsIn"],
        units_out=posted["unitsOut"],
        designated=posted["designated"],
        expires_at=posted["expiresAt"],
    )


def _decode_values(fields: Sequence[Mapping[str, Any]], data: bytes) -> dict[str, Any]:
    return {field["name"]: _decode_value(field["type"], data, word) for word, field in enumerate(fields)}


def _decode_value(kind: str, data: bytes, word: int) -> Any:
    readers = {
        "address": abi.address_at,
        "bool": abi.boolean_at,
        "bytes32": abi.bytes32_at,
        "bytes": abi.bytes_at,
        "string": abi.text_at,
    }
    if kind in readers:
        return readers[kind](data, word)
    if kind.startswith("uint"):
        return abi.uint_at(data, word, int(kind.removeprefix("uint")))
    raise Refused(f"the ABI type {kind} is not supported")
