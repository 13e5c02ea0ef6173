"""Sign transactions with a key in memory or with an external program. Signatures of a program are checked.

Errors begin with the option or variable at fault, and contain no key.
"""

import json
import shlex
import subprocess
from collections.abc import Mapping
from typing import Final, Protocol

import attrs

from common.daemon.process import Fatal
from common.inclusion import rlp
from common.keccak import keccak256
from common.refusal import Refused
from common.scalars import checksum_address, read_hex_upto
from common.secp256k1 import Wallet, recover_address
from common.transactions import EIP1559_TYPE, Transaction

# Default timeout of a signing program. Long, because a person may have to press a button.
SIGNER_TIMEOUT_S: Final = 600
_MAX_SIGNED_TX_BYTES: Final = 1 << 18
# Fields of an EIP-1559 transaction, in order. The access list and the signature follow.
_TX_FIELDS: Final = ("chainId", "nonce", "maxPriorityFeePerGas", "maxFeePerGas", "gas", "to", "value", "data")


class SigningFailed(Fatal):
    """The signer is unreachable, took too long, or did not return the requested signature."""


class TransactionSigner(Protocol):
    """Signer for one account."""

    @property
    def address(self) -> str: ...
    def sign(self, transaction: Transaction) -> bytes: ...


@attrs.frozen(slots=True)
class LocalKey:
    """Key in the memory of this process."""

    address: str
    wallet: Wallet = attrs.field(repr=False)

    @classmethod
    def from_key(cls, key: bytes) -> "LocalKey":
        return cls.from_wallet(Wallet(key))

    @classmethod
    def from_wallet(cls, wallet: Wallet) -> "LocalKey":
        return cls(checksum_address(wallet.address), wallet)

    def sign(self, transaction: Transaction) -> bytes:
        return transaction.sign(self.wallet).raw


@attrs.frozen(slots=True)
class SigningProgram:
    """Program that reads one transaction as JSON on stdin and writes the signed bytes in hex to stdout.

    The program inherits stderr, so that it can prompt for a password or a button on the operator's terminal. In a
    daemon, stderr is the log.

    `setting` is the option or variable that names the program. `environment` replaces the inherited environment.
    """

    address: str
    command: tuple[str, ...]
    setting: str = "--signer"
    timeout_s: float = SIGNER_TIMEOUT_S
    environment: Mapping[str, str] | None = attrs.field(default=None, repr=False)

    def sign(self, transaction: Transaction) -> bytes:
        program = f"{self.setting} {self.command[0]}"
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self.command,
                input=json.dumps(rpc_transaction(transaction, self.address)).encode(),
                stdout=subprocess.PIPE,
                timeout=self.timeout_s,
                env=self.environment,
                check=False,
            )
        except OSError as missing:
            raise SigningFailed(f"{program} cannot be run: {missing.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SigningFailed(f"{program} did not sign within {self.timeout_s:g} s") from None
        if done.returncode != 0:
            raise SigningFailed(f"{program} ended with status {done.returncode} and signed nothing")
        text = done.stdout.decode("utf-8", "replace").strip()
        try:
            raw = decode_signed_hex(text)
        except Refused as wrong:
            raise SigningFailed(f"{program} must print the signed transaction in hex: {wrong}") from None
        require_signed_transaction(raw, transaction, self.address, self.setting)
        return raw


def decode_signed_hex(text: object) -> bytes:
    """Decode a signed transaction in hex."""
    return read_hex_upto(text, _MAX_SIGNED_TX_BYTES, "the output")


def rpc_transaction(transaction: Transaction, sender: str) -> dict[str, object]:
    """Return the transaction with the field names of `eth_signTransaction`. A deployment has no `to`."""
    fields: dict[str, object] = {
        "type": "0x2",
        "chainId": hex(transaction.chain_id),
        "from": sender,
        "nonce": hex(transaction.nonce),
        "gas": hex(transaction.gas),
        "maxFeePerGas": hex(transaction.max_fee_per_gas),
        "maxPriorityFeePerGas": hex(transaction.max_priority_fee_per_gas),
        "value": hex(transaction.value),
        "data": "0x" + transaction.data.hex(),
        "accessList": [],
    }
    return fields if transaction.to is None else fields | {"to": checksum_address(transaction.to)}


def require_signed_transaction(raw: bytes, requested: Transaction, address: str, setting: str) -> None:
    """Raise SigningFailed, prefixed with `setting`, unless `raw` is the requested transaction signed by `address`."""
    try:
        fields, signer = _decode_signed(raw)
    except Refused as wrong:
        raise SigningFailed(f"{setting} must answer with a signed transaction of type 2: {wrong}") from None
    expected = (
        *map(
            rlp.integer_content,
            (requested.chain_id, requested.nonce, requested.max_priority_fee_per_gas, requested.max_fee_per_gas),
        ),
        *(
            rlp.integer_content(requested.gas),
            requested.to or b"",
            rlp.integer_content(requested.value),
            requested.data,
        ),
    )
    for name, value, found in zip(_TX_FIELDS, expected, fields, strict=False):
        if found != value:
            raise SigningFailed(f"{setting} signed a different transaction than requested: {name} differs")
    if fields[len(_TX_FIELDS)]:
        raise SigningFailed(f"{setting} signed a different transaction than requested: it has an access list")
    if signer != address:
        raise SigningFailed(f"{setting} signed as {signer}, not as {address}")


def _decode_signed(raw: bytes) -> tuple[list[rlp.Item], str]:
    """Return the fields up to the access list, and the signer. Raise Refused for anything but a signed EIP-1559
    transaction."""
    items = rlp.decode_list(raw[1:], "the output")
    if raw[:1] != EIP1559_TYPE or len(items) != len(_TX_FIELDS) + 4:
        raise Refused("the output must be an EIP-1559 transaction with its signature")
    fields = items[: len(_TX_FIELDS) + 1]
    parity, *scalars = (rlp.read_integer(item, "the output") for item in items[len(fields) :])
    if parity > 1 or max(scalars) >> 256:
        raise Refused("the output contains no valid signature")
    r_s = b"".join(scalar.to_bytes(32, "big") for scalar in scalars)
    signer = recover_address(keccak256(EIP1559_TYPE + rlp.encode(fields)), r_s + bytes([27 + parity]))
    if signer is None:
        raise Refused("the output contains no valid signature")
    return fields, checksum_address(signer)


def parse_signing_program(command: str, address: str, setting: str = "--signer") -> SigningProgram:
    try:
        words = tuple(shlex.split(command))
    except ValueError as wrong:
        raise Fatal(f"{setting} must be a command line: {wrong}") from None
    if not words:
        raise Fatal(f"{setting} must name a program")
    return SigningProgram(address, words, setting)
