"""Values of calls and events by their names, decoded as the contracts' own ABI lays them out.

Read by name, a field that moves or comes in anew changes nothing here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from common import abi
from common.artifacts import Artifact, event_topic, selector
from common.refusal import Refused
from svc.errors import NodeFailed


def call_data(artifact: Artifact, function: str, *words: abi.Words) -> bytes:
    return abi.call(selector(artifact, function), *words)


def returned(artifact: Artifact, function: str, data: bytes) -> dict[str, Any]:
    """The values that a function returned, by name; the fields of a struct where it returns one."""
    (entry,) = (each for each in artifact.abi if each["type"] == "function" and each["name"] == function)
    outputs = entry["outputs"]
    if len(outputs) == 1 and outputs[0]["type"] == "tuple":
        outputs = outputs[0]["components"]  # of static fields alone: it stands in the head as it is
    return _decoded(f"{artifact.name}.{function}", outputs, data)


def event_values(artifact: Artifact, event: str, topics: Sequence[bytes], data: bytes) -> dict[str, Any]:
    """An event's fields, indexed ones too. Raises NodeFailed for a log of another event."""
    (entry,) = (each for each in artifact.abi if each["type"] == "event" and each["name"] == event)
    indexed = [field for field in entry["inputs"] if field["indexed"]]
    if not topics or topics[0] != event_topic(artifact, event) or len(topics) != 1 + len(indexed):
        raise NodeFailed(f"a node gave a log that is no {event}", retryable=False)
    plain = [field for field in entry["inputs"] if not field["indexed"]]
    name = f"{artifact.name}.{event}"
    return _decoded(name, indexed, b"".join(topics[1:])) | _decoded(name, plain, data)


def _decoded(what: str, fields: Sequence[Mapping[str, Any]], data: bytes) -> dict[str, Any]:
    try:
        return {field["name"]: _value(field["type"], data, word) for word, field in enumerate(fields)}
    except Refused as refusal:
        raise NodeFailed(
            f"there is no {what} at this address, or it is another one's: {refusal}", retryable=False
        ) from None


def _value(kind: str, data: bytes, word: int) -> Any:
    if kind == "address":
        return abi.address_at(data, word)
    if kind == "bool":
        return abi.boolean_at(data, word)
    if kind == "bytes32":
        return abi.bytes32_at(data, word)
    if kind == "bytes":
        return abi.bytes_at(data, word)
    if kind == "string":
        return abi.text_at(data, word)
    if kind.startswith("uint"):
        return abi.uint_at(data, word, int(kind.removeprefix("uint")))
    raise Refused(f"{kind} is not read here")
