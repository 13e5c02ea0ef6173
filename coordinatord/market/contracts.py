"""Encode calls of this package's contracts, call view functions with web3, and explain reverts."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import attrs
from eth_abi.exceptions import DecodingError
from eth_typing import ChecksumAddress
from eth_utils.abi import get_abi_input_types
from eth_utils.address import to_checksum_address
from hexbytes import HexBytes
from web3 import Web3
from web3.contract import contract as web3_contract
from web3.exceptions import BadFunctionCallOutput
from web3.providers import BaseProvider

from common import abi, artifacts
from common.daemon.process import Fatal
from common.refusal import Refused
from common.scalars import hex_of, read_hex
from coordinatord.chain.rpc.errors import RpcError, RpcErrorKind

ZERO_ADDRESS: Final = "0x" + "00" * 20
_PUSH32: Final = 0x7F
_OFFLINE_WEB3: Final = Web3(BaseProvider(), middleware=[])  # encodes and decodes without a node
# Errors of Solidity itself, which no ABI lists.
_LANGUAGE_ERRORS: Final = {
    abi.selector("Error(string)"): ("Error", ["string"]),
    abi.selector("Panic(uint256)"): ("Panic", ["uint256"]),
}


@attrs.frozen(slots=True)
class ContractCall:
    """Transaction to send. `to` is None for a deployment. `description` is shown to the user."""

    description: str
    to: str | None
    data: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Contract:
    """Contract at `address` with the interface of the artifact `name`."""

    name: str
    address: ChecksumAddress = attrs.field(converter=to_checksum_address)

    def bind(self, node: Web3) -> web3_contract.Contract:
        """Return the web3 object that calls this contract through `node`."""
        return node.eth.contract(self.address, abi=_load_abi(self.name), decode_tuples=True)

    def calldata(self, function: str, *arguments: object) -> bytes:
        return bytes(HexBytes(_contract_class(self.name).encode_abi(function, arguments)))

    def build_call(self, description: str, function: str, *arguments: object) -> ContractCall:
        return ContractCall(description, self.address, self.calldata(function, *arguments))

    def read(self, node: Web3, function: str, *arguments: object) -> Any:
        """Call a view function. Raise Fatal or Refused if another contract is at the address."""
        try:
            return self.bind(node).functions[function](*arguments).call()
        except RpcError as error:
            if error.kind is not RpcErrorKind.REVERTED:
                raise
            raise Fatal(
                f"the contract at {self.address} is not a {self.name}: its function {function} reverts"
            ) from error
        except BadFunctionCallOutput:
            raise Refused(
                f"the contract at {self.address} is not a {self.name}: the answer to {function} is invalid"
            ) from None


def checksum_address(address: bytes | str) -> str:
    return str(to_checksum_address(address))


def read_address(text: object, param: str) -> str:
    """Parse an address. A mixed-case address must have its checksum, which detects typing errors."""
    raw = read_hex(text, 20, param)
    digits = str(text)[2:]
    address = checksum_address(raw)
    if digits not in (digits.lower(), digits.upper()) and address != text:
        raise Refused(f"{param} must have the checksum of EIP-55 when it is in mixed case: {text} does not", param)
    if not any(raw):
        raise Refused(f"{param} must not be the zero address", param)
    return address


def creation_data(name: str, *arguments: object) -> bytes:
    """Return the data of the transaction that deploys a contract."""
    return bytes(HexBytes(_contract_class(name).constructor(*arguments).data_in_transaction))


def encode_constructor_arguments(name: str, *arguments: object) -> bytes:
    return creation_data(name, *arguments)[len(artifacts.load_artifact(name).bytecode) :]


def is_code_of(name: str, code: bytes) -> bool:
    """Return True if `code` is the code of the contract `name`, with any immutable values.

    The compiler emits each immutable value as a PUSH32 of zeros. All other bytes must be equal.
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


def explain_revert(revert: bytes) -> str:
    """Return the name and values of the error that a call reverted with."""
    if not revert:
        return "the call reverted without a reason"
    name, types = _find_error(revert[:4])
    if name is None:
        return f"the call reverted with an error that no contract of this package defines: {hex_of(revert[:68])}"
    try:
        values = _OFFLINE_WEB3.codec.decode(types, revert[4:])
    except (DecodingError, UnicodeDecodeError):
        return f"{name}: {hex_of(revert[:68])}"
    shown = [
        checksum_address(value) if kind == "address" else str(value) for kind, value in zip(types, values, strict=True)
    ]
    return shown[0] if name == "Error" else f"{name}({', '.join(shown)})"


def _find_error(selector: bytes) -> tuple[str | None, Sequence[str]]:
    if selector in _LANGUAGE_ERRORS:
        return _LANGUAGE_ERRORS[selector]
    for contract in artifacts.CONTRACTS:
        name = artifacts.load_artifact(contract).errors.get(selector)
        if name is not None:
            entry = next(entry for entry in _load_abi(contract) if entry["type"] == "error" and entry["name"] == name)
            return name, get_abi_input_types(entry)
    return None, ()


def _load_abi(name: str) -> Any:
    return list(artifacts.load_artifact(name).abi)


@cache
def _contract_class(name: str) -> type[web3_contract.Contract]:
    return _OFFLINE_WEB3.eth.contract(abi=_load_abi(name), bytecode=artifacts.load_artifact(name).bytecode)
