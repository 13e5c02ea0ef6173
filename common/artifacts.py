"""The compiled contracts that this package carries: their ABI, bytecode, event topics and error names.

`common/contracts/build.mjs` writes the artifacts; a test proves that they come from the sources beside them.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import attrs

from common.keccak import keccak256

CONTRACTS = ("AskRegistry", "DevToken", "IssuedToken", "IssuedTokenProxy", "JobRegistry", "ProviderRegistry")

# ABI entries are JSON as the compiler wrote it: what they hold differs by their "type".
AbiEntry = Mapping[str, Any]

# What every Solidity contract may answer besides its own errors; no ABI lists them.
_LANGUAGE_ERRORS = ("Error(string)", "Panic(uint256)")


@attrs.frozen(slots=True)
class Artifact:
    """One compiled contract. `bytecode` is what a deployment sends, before the constructor's arguments."""

    name: str
    abi: tuple[AbiEntry, ...]
    bytecode: bytes = attrs.field(repr=False)
    errors: Mapping[bytes, str]


@cache
def load(name: str) -> Artifact:
    """The artifact of one of `CONTRACTS`; KeyError for any other name."""
    document = _document(name)
    errors = {bytes.fromhex(selector[2:]): error for selector, error in document["errors"].items()}
    return Artifact(
        name=name,
        abi=tuple(document["abi"]),
        bytecode=bytes.fromhex(document["bytecode"][2:]),
        errors=MappingProxyType(errors),
    )


def deployed_code(name: str) -> bytes:
    """The code that a deployment leaves on the chain, with zeros where its immutable values stand."""
    return bytes.fromhex(_document(name)["deployedBytecode"][2:])


@cache
def sources() -> Mapping[str, Any]:
    """What the artifacts were compiled from: the compiler's version, its settings, and the sources of each contract."""
    return MappingProxyType(json.loads(files("common").joinpath("contracts", "sources.json").read_bytes()))


def event_topic(artifact: Artifact, event_name: str) -> bytes:
    """The first topic of an event's logs; KeyError when the contract has no such event."""
    return keccak256(_signature(artifact, "event", event_name))


def selector(artifact: Artifact, function_name: str) -> bytes:
    """The four bytes a call begins with; KeyError when the contract has no such function.

    ValueError for an overloaded name, of which only a token has any: it would need its argument types.
    """
    return keccak256(_signature(artifact, "function", function_name))[:4]


def _document(name: str) -> dict[str, Any]:
    if name not in CONTRACTS:
        raise KeyError(name)
    document: dict[str, Any] = json.loads(
        files("common").joinpath("contracts", "artifacts", f"{name}.json").read_bytes()
    )
    return document


def _error_names() -> Mapping[bytes, str]:
    names = {keccak256(text.encode())[:4]: text.partition("(")[0] for text in _LANGUAGE_ERRORS}
    for name in CONTRACTS:
        names.update(load(name).errors)
    return MappingProxyType(names)


ERROR_NAMES: Mapping[bytes, str] = _error_names()
"""Selector to name, over every error that any of the contracts can revert with."""


def decode_error(revert_data: bytes) -> str | None:
    """The name of the error that a call reverted with, or None for data that names none of ours."""
    return ERROR_NAMES.get(bytes(revert_data[:4]))


def _signature(artifact: Artifact, kind: str, name: str) -> bytes:
    found = [entry for entry in artifact.abi if entry["type"] == kind and entry["name"] == name]
    if not found:
        raise KeyError(f"{artifact.name} has no {kind} {name}")
    if len(found) > 1:
        raise ValueError(f"{artifact.name} has several {kind}s named {name}")
    return f"{name}({_types(found[0]['inputs'])})".encode()


def _types(inputs: Sequence[AbiEntry]) -> str:
    return ",".join(_type(parameter) for parameter in inputs)


def _type(parameter: AbiEntry) -> str:
    """A struct is written as the tuple of its members' types, with the array suffix behind it."""
    kind: str = parameter["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({_types(parameter['components'])}){kind.removeprefix('tuple')}"
