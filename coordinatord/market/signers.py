"""Keys of the account that deploys or administers: an encrypted keystore, a key file, or a program that signs.

A key is never an argument nor a variable: both show in the list of processes or in a shell's history.
"""

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Callable, Mapping
from getpass import getpass
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from common.daemon.process import Fatal
from common.refusal import Refused
from common.scalars import read_hex_upto
from common.secp256k1 import Wallet
from common.transactions import Transaction
from coordinatord.market.contracts import checksum

PASSWORD_VARIABLE: Final = "MARKET_KEYSTORE_PASSWORD"  # noqa: S105 - the name of a variable
CREDENTIAL: Final = "market_keystore_password"
_SIGNER_SECONDS: Final = 600  # somebody may have to press a button
_LONGEST_RAW: Final = 1 << 18


class TransactionSigner(Protocol):
    """Signs as one account."""

    @property
    def address(self) -> str: ...
    def sign(self, transaction: Transaction) -> bytes: ...


@attrs.frozen(slots=True)
class LocalKey:
    """A key in this process's memory."""

    address: str
    _wallet: Wallet = attrs.field(repr=False)

    @classmethod
    def of(cls, key: bytes) -> "LocalKey":
        wallet = Wallet(key)
        return cls(checksum(wallet.address), wallet)

    def sign(self, transaction: Transaction) -> bytes:
        return transaction.sign(self._wallet).raw


@attrs.frozen(slots=True)
class SigningProgram:
    """A program that gets one transaction as JSON on stdin, and answers with its signed bytes in hex on stdout.

    Its stderr is the operator's terminal, so that it can ask for a password or say what to press.
    """

    address: str
    command: tuple[str, ...]

    def sign(self, transaction: Transaction) -> bytes:
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self.command,
                input=json.dumps(as_json(transaction, self.address)).encode(),
                stdout=subprocess.PIPE,
                timeout=_SIGNER_SECONDS,
                check=False,
            )
        except OSError as missing:
            raise Fatal(f"--signer {self.command[0]} cannot be run: {missing.strerror}") from None
        except subprocess.TimeoutExpired:
            raise Fatal(f"--signer {self.command[0]} did not sign within {_SIGNER_SECONDS} s") from None
        if done.returncode != 0:
            raise Fatal(f"--signer {self.command[0]} ended with status {done.returncode} and signed nothing")
        text = done.stdout.decode("utf-8", "replace").strip()
        try:
            raw = read_hex_upto(text, _LONGEST_RAW, "its output")
        except Refused as wrong:
            raise Fatal(f"--signer {self.command[0]} must print the signed transaction in hex: {wrong}") from None
        require_signed(raw, transaction, self.address)
        return raw


def as_json(transaction: Transaction, sender: str) -> dict[str, object]:
    """The transaction as `eth_signTransaction` names its fields. A deployment has no `to`."""
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
    return fields if transaction.to is None else fields | {"to": checksum(transaction.to)}


def require_signed(raw: bytes, asked: Transaction, address: str) -> None:
    """Fatal unless `raw` is the transaction asked for, field for field, signed by `address`."""
    try:
        signer = checksum(Account.recover_transaction(raw))
        signed: Mapping[str, Any] = TypedTransaction.from_bytes(HexBytes(raw)).as_dict()
    except Exception as strange:  # a decoder of foreign bytes raises whatever it likes
        raise Fatal(f"--signer must answer with a signed transaction of type 2: {strange}") from None
    wanted = {
        "chainId": asked.chain_id,
        "nonce": asked.nonce,
        "maxFeePerGas": asked.max_fee_per_gas,
        "maxPriorityFeePerGas": asked.max_priority_fee_per_gas,
        "gas": asked.gas,
        "to": asked.to or b"",
        "value": asked.value,
        "data": asked.data,
    }
    for name, value in wanted.items():
        found = signed[name]
        if (bytes(found) if isinstance(value, bytes) else found) != value:
            raise Fatal(f"--signer signed another transaction than asked: its {name} differs")
    if tuple(signed["accessList"]):
        raise Fatal("--signer signed another transaction than asked: it has an access list")
    if signer != address:
        raise Fatal(f"--signer signed as {signer}, not as {address}")


# --- what the command line names ---


def from_keystore(path: Path, password: Callable[[], str]) -> LocalKey:
    """An encrypted file as geth, clef, cast or eth-account write it."""
    try:
        document = json.loads(_private(path, "--keystore"))
    except ValueError:
        raise Fatal(f"--keystore {path} must be a JSON keystore file") from None
    try:
        return LocalKey.of(bytes(Account.decrypt(document, password())))
    except ValueError as wrong:
        raise Fatal(f"--keystore {path} cannot be opened: {wrong}") from None
    except (KeyError, TypeError, NotImplementedError):
        raise Fatal(f"--keystore {path} must be a JSON keystore file of version 3") from None


def new_keystore(path: Path, password: str) -> str:
    """Make a key and write it, encrypted, to a file that must not be there yet; its address."""
    if not password:
        raise Fatal("the password of a keystore must not be empty")
    account = Account.create()
    document = json.dumps(Account.encrypt(account.key, password)) + "\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Fatal(f"--out {path}: {error.strerror}") from None
    return str(account.address)


def from_key_file(path: Path) -> LocalKey:
    """A file of one key in hex, which nobody but its owner may read."""
    text = _private(path, "--key-file").strip()
    try:
        return LocalKey.of(bytes.fromhex(text.removeprefix("0x")))
    except ValueError:
        raise Fatal(f"--key-file {path} must hold one private key of 32 bytes in hex") from None


def from_command(command: str, address: str) -> SigningProgram:
    words = tuple(shlex.split(command))
    if not words:
        raise Fatal("--signer must name a program")
    return SigningProgram(address, words)


def keystore_password(file: Path | None, environ: Mapping[str, str]) -> str:
    """From the file, the variable, the systemd credential, or the terminal: the first that there is."""
    if file is not None:
        return _private(file, "--password-file").rstrip("\r\n")
    if environ.get(PASSWORD_VARIABLE):
        return environ[PASSWORD_VARIABLE]
    if environ.get("CREDENTIALS_DIRECTORY"):
        credential = Path(environ["CREDENTIALS_DIRECTORY"]) / CREDENTIAL
        if credential.exists():
            return _private(credential, CREDENTIAL).rstrip("\r\n")
    return getpass("Password of the keystore: ")


def _private(path: Path, option: str) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise Fatal(
                    f"{option} {path} must be readable by its owner alone: it has mode {stat.S_IMODE(mode):04o}; "
                    f"run `chmod 600 {path}`"
                )
            return file.read().decode("utf-8")
    except OSError as missing:
        raise Fatal(f"{option} {path}: {missing.strerror}") from None
    except UnicodeDecodeError:
        raise Fatal(f"{option} {path} must be text") from None
