"""Compiled contracts in this package: ABI, bytecode, event topics and error names.

`common/contracts/build.mjs` writes the artifacts. A test compares them with the Solidity sources.
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

# One function, event or error in the compiler's JSON. Its members depend on its "type".
AbiEntry = Mapping[str, Any]

# Solidity's built-in errors, which no ABI lists.
_LANGUAGE_ERRORS = ("Error(string)", "Panic(uint256)")


@attrs.frozen(slots=True)
class Artifact:
    """One compiled contract.

    To deploy the contract, send `bytecode` followed by the encoded constructor arguments. `errors` has the names of the
    contract's errors by selector.
    """

    name: str
    abi: tuple[AbiEntry, ...]
    bytecode: bytes = attrs.field(repr=False)
    errors: Mapping[bytes, str]


@cache
def load_artifact(name: str) -> Artifact:
    """Return the artifact of one of `CONTRACTS`. Raise KeyError for any other name."""
    document = _read_artifact_file(name)
    errors = {bytes.fromhex(selector[2:]): error for selector, error in document["errors"].items()}
    return Artifact(
        name=name,
        abi=tuple(document["abi"]),
        bytecode=bytes.fromhex(document["bytecode"][2:]),
        errors=MappingProxyType(errors),
    )


def deployed_code(name: str) -> bytes:
    """Return the code of a deployed contract, with zeros in place of its immutable values."""
    return bytes.fromhex(_read_artifact_file(name)["deployedBytecode"][2:])


@cache
def compiler_sources() -> Mapping[str, Any]:
    """Return the compiler's version, its settings, and the sources of each contract."""
    return MappingProxyType(json.loads(files("common").joinpath("contracts", "sources.json").read_bytes()))


def event_topic(artifact: Artifact, event_name: str) -> bytes:
    """Return the first topic of an event's logs. Raise KeyError if the contract has no such event."""
    return keccak256(_signature_of(artifact, "event", event_name))


def selector(artifact: Artifact, function_name: str) -> bytes:
    """Return the selector of a function. Raise KeyError if the contract has no such function.

    Raise ValueError for an overloaded name, because the selector depends on the argument types.
    """
    return keccak256(_signature_of(artifact, "function", function_name))[:4]


def _read_artifact_file(name: str) -> dict[str, Any]:
    if name not in CONTRACTS:
        raise KeyError(name)
    document: dict[str, Any] = json.loads(
        files("common").joinpath("contracts", "artifacts", f"{name}.json").read_bytes()
    )
    return document


def _collect_error_names() -> Mapping[bytes, str]:
    names = {keccak256(text.encode())[:4]: text.partition("(")[0] for text in _LANGUAGE_ERRORS}
    for name in CONTRACTS:
        names.update(load_artifact(name).errors)
    return MappingProxyType(names)


ERROR_NAMES: Mapping[bytes, str] = _collect_error_names()
"""Names of all errors that the contracts can revert with, keyed by selector."""


def decode_error_name(revert_data: bytes) -> str | None:
    """Return the name of the error that a call reverted with, or None for an unknown error."""
    return ERROR_NAMES.get(bytes(revert_data[:4]))


def _signature_of(artifact: Artifact, kind: str, name: str) -> bytes:
    matching = [entry for entry in artifact.abi if entry["type"] == kind and entry["name"] == name]
    if not matching:
        raise KeyError(f"{artifact.name} has no {kind} {name}")
    if len(matching) > 1:
        raise ValueError(f"{artifact.name} has several {kind}s named {name}")
    return f"{name}({_parameter_types(matching[0]['inputs'])})".encode()


def _parameter_types(inputs: Sequence[AbiEntry]) -> str:
    return ",".join(_parameter_type(parameter) for parameter in inputs)


def _parameter_type(parameter: AbiEntry) -> str:
    """Return a parameter's type in a function signature: `uint256`, or the members' types for a struct."""
    kind: str = parameter["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({_parameter_types(parameter['components'])}){kind.removeprefix('tuple')}"
