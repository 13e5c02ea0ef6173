"""Calls, answers, events and revert data of the contracts, by the ABI that this package carries."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs
from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.abi import collapse_if_tuple
from eth_utils.address import to_checksum_address

from common import abi, artifacts
from common.artifacts import AbiEntry
from common.refusal import Refused
from common.scalars import hex_of, read_hex

ZERO: Final = "0x" + "00" * 20
_PUSH32: Final = 0x7F
# No ABI lists them.
_LANGUAGE_ERRORS: Final[Mapping[bytes, tuple[str, Sequence[str]]]] = {
    abi.selector("Error(string)"): ("Error", ("string",)),
    abi.selector("Panic(uint256)"): ("Panic", ("uint256",)),
}


@attrs.frozen(slots=True)
class ContractCall:
    """One transaction to be made: `to` is None for a deployment. `words` tell a person what it does."""

    words: str
    to: str | None
    data: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Event:
    """One log of one of the registries, decoded. Addresses in it are checksummed."""

    contract: str
    name: str
    values: Mapping[str, Any]
    block: int
    transaction: str


@attrs.frozen(slots=True)
class Contract:
    """The contract whose artifact is `name`, at `address` (checksummed)."""

    name: str
    address: str

    def calldata(self, function: str, *arguments: object) -> bytes:
        artifact = artifacts.load(self.name)
        return artifacts.selector(artifact, function) + encode(_types(self._function(function)["inputs"]), arguments)

    def call(self, words: str, function: str, *arguments: object) -> ContractCall:
        return ContractCall(words, self.address, self.calldata(function, *arguments))

    def answer(self, function: str, data: bytes) -> tuple[Any, ...]:
        """Values that a call of `function` answered; Refused when that is not what the function returns."""
        try:
            values = decode(_types(self._function(function)["outputs"]), data)
        except DecodingError:
            raise Refused(f"{self.name} at {self.address} does not answer {function} as the contract does") from None
        return tuple(_plain(value) for value in values)

    def members(self, function: str) -> list[str]:
        """The names of the struct that `function` returns."""
        [returned] = self._function(function)["outputs"]
        return [member["name"] for member in returned["components"]]

    def _function(self, name: str) -> AbiEntry:
        return _entry(self.name, "function", name)


def checksum(address: bytes | str) -> str:
    return str(to_checksum_address(address))


def read_address(text: object, param: str) -> str:
    """An address as people write it. In mixed case its checksum must be right, since a typing error shows in it."""
    raw = read_hex(text, 20, param)
    digits = str(text)[2:]
    address = checksum(raw)
    if digits not in (digits.lower(), digits.upper()) and address != text:
        raise Refused(f"{param} must have the checksum of EIP-55 when it is in mixed case: {text} does not", param)
    if not any(raw):
        raise Refused(f"{param} must not be the zero address", param)
    return address


def creation(name: str, *arguments: object) -> bytes:
    """The data of the transaction that deploys a contract."""
    return artifacts.load(name).bytecode + constructor_arguments(name, *arguments)


def constructor_arguments(name: str, *arguments: object) -> bytes:
    constructors = [entry for entry in artifacts.load(name).abi if entry["type"] == "constructor"]
    return encode(_types(constructors[0]["inputs"] if constructors else ()), arguments)


def is_code_of(name: str, code: bytes) -> bool:
    """Tell that `code` is the contract's, whatever stands in its immutable values.

    The compiler leaves each immutable value as the 32 zero bytes of a PUSH32; every other byte must be equal.
    """
    template = artifacts.deployed_code(name)
    if len(code) != len(template):
        return False
    position = 0
    while position < len(template):
        opcode = template[position]
        pushed = opcode - 0x5F if 0x5F < opcode <= _PUSH32 else 0
        after = position + 1 + pushed
        immutable = opcode == _PUSH32 and not any(template[position + 1 : after])
        compared = position + 1 if immutable else after
        if code[position:compared] != template[position:compared]:
            return False
        position = after
    return True


def topic(name: str, event: str) -> str:
    return hex_of(artifacts.event_topic(artifacts.load(name), event))


def read_event(name: str, event: str, log: Mapping[str, Any]) -> Event:
    inputs = _entry(name, "event", event)["inputs"]
    indexed = [field for field in inputs if field["indexed"]]
    others = [field for field in inputs if not field["indexed"]]
    values = {
        field["name"]: _plain(decode(_types([field]), bytes.fromhex(word[2:]))[0])
        for field, word in zip(indexed, log["topics"][1:], strict=True)
    }
    for field, value in zip(others, decode(_types(others), bytes.fromhex(log["data"][2:])), strict=True):
        values[field["name"]] = _plain(value)
    return Event(name, event, values, int(log["blockNumber"], 16), str(log["transactionHash"]))


def explained(revert: bytes) -> str:
    """The error that a call reverted with, by its name and values."""
    if not revert:
        return "it reverted and said no reason"
    name, types = _error(revert[:4])
    if name is None:
        return f"an error of another contract: {hex_of(revert[:68])}"
    try:
        values = [str(_plain(value)) for value in decode(types, revert[4:])]
    except (DecodingError, UnicodeDecodeError):
        return f"{name}: {hex_of(revert[:68])}"
    return values[0] if name == "Error" else f"{name}({', '.join(values)})"


def _error(selector: bytes) -> tuple[str | None, Sequence[str]]:
    if selector in _LANGUAGE_ERRORS:
        return _LANGUAGE_ERRORS[selector]
    for contract in artifacts.CONTRACTS:
        name = artifacts.load(contract).errors.get(selector)
        if name is not None:
            return name, _types(_entry(contract, "error", name)["inputs"])
    return None, ()


def _entry(contract: str, kind: str, name: str) -> AbiEntry:
    return next(entry for entry in artifacts.load(contract).abi if entry["type"] == kind and entry["name"] == name)


def _types(inputs: Iterable[AbiEntry]) -> Sequence[str]:
    return [collapse_if_tuple(cast("Any", entry)) for entry in inputs]


def _plain(value: Any) -> Any:
    """eth_abi writes addresses in lower case; a struct is a tuple of its members."""
    if isinstance(value, str) and len(value) == 42 and value.startswith("0x"):
        return checksum(value)
    if isinstance(value, tuple):
        return tuple(_plain(member) for member in value)
    return value
