"""Wallets of this user, as settings name them: a key, a key file, an encrypted keystore, or a program that signs.

    SVC_WALLET_KEY          the private key: 32 bytes of hex
    SVC_WALLET_KEY_FILE     a file that holds it, as `svc keygen` writes it
    SVC_KEYSTORE            a JSON keystore of version 3, as geth, clef, cast and `svc keygen --encrypted` write it;
                            SVC_KEYSTORE_PASSWORD_FILE holds its password, else the command line asks for it
    SVC_SIGNER_COMMAND      a program that is given EIP-712 JSON and prints the signature, for SVC_WALLET_ADDRESS;
                            SVC_SIGNER_DETERMINISTIC=1: it signs as RFC 6979 has it, so that results may be sealed to a
                            key that is derived from a signature

One way at a time: which of two accounts pays is nothing to guess.
"""

import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from common.keystores import new_key, open_keystore, write_keystore
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.signer_command import COMMAND, signer_by_command
from svc.signers import LocalSigner, Signer

KEY: Final = "SVC_WALLET_KEY"
KEY_FILE: Final = "SVC_WALLET_KEY_FILE"
KEYSTORE: Final = "SVC_KEYSTORE"
PASSWORD_FILE: Final = "SVC_KEYSTORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable
WAYS: Final = (KEY, KEY_FILE, KEYSTORE, COMMAND)

AskPassword = Callable[[Path], str]

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LONGEST: Final = 1 << 16


def signer_of(
    environment: Mapping[str, str], key_file: Path | None = None, ask_password: AskPassword | None = None
) -> Signer | None:
    """The wallet, or None when none is named anywhere. Raises Refused; no message ever shows a key.

    A `key_file`, encrypted or not, wins over the environment. `ask_password` is asked for the password of a keystore
    that no file holds.
    """
    if key_file is not None:
        return LocalSigner(_opened(key_file, KEY_FILE, environment, ask_password))
    named = [way for way in WAYS if environment.get(way)]
    if len(named) > 1:
        raise Refused(f"{' and '.join(named)} are both set: keep one", named[0])
    match named:
        case []:
            return None
        case [way] if way == KEY:
            return LocalSigner(_parsed(environment[KEY]))
        case [way] if way == COMMAND:
            return signer_by_command(environment)
        case [way]:
            return LocalSigner(_opened(Path(environment[way]), way, environment, ask_password))
    raise AssertionError("one way or none")


def _parsed(key: str) -> Wallet:
    try:
        return Wallet(bytes.fromhex(key.strip().removeprefix("0x")))
    except ValueError:  # Refused, for a number that is no key, among them
        raise Refused(f"{KEY} does not hold a private key: it must be 32 bytes of hex", KEY) from None


def _opened(path: Path, variable: str, environment: Mapping[str, str], ask_password: AskPassword | None) -> Wallet:
    try:
        text, others_read = _text_of(path)
        if text.lstrip().startswith("{"):
            return open_keystore(text, password_of(path, environment, ask_password))
        if variable == KEYSTORE:
            raise Refused(f"{path} must be a JSON keystore; {KEY_FILE} names a key file in hex")
        return _wallet_in(path, text, others_read)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", variable) from None
    except Refused as wrong:
        message = wrong.message if str(path) in wrong.message or wrong.param else f"{path} {wrong.message}"
        raise Refused(message, wrong.param if wrong.param in _SETTINGS else variable) from None


_SETTINGS: Final = frozenset({PASSWORD_FILE})


def password_of(path: Path, environment: Mapping[str, str], ask_password: AskPassword | None) -> str:
    """The password of a keystore: of a file that is named, else asked for. Raises Refused."""
    named = environment.get(PASSWORD_FILE)
    if named:
        try:
            return _require_own(Path(named), *_text_of(Path(named))).rstrip("\r\n")
        except OSError as error:
            raise Refused(f"{PASSWORD_FILE} names {named}: {error.strerror}", PASSWORD_FILE) from None
        except Refused as wrong:
            raise Refused(wrong.message, PASSWORD_FILE) from None
    if ask_password is None:
        raise Refused(f"{path} is encrypted: set {PASSWORD_FILE} to a file that holds its password", PASSWORD_FILE)
    return ask_password(path)


# Key files of this client: one wallet key in hex, readable by its owner alone.


def create_wallet(path: Path, password: str | None = None) -> Wallet:
    """A fresh wallet, its key stored at `path`, encrypted where there is a password. Never overwrites: a lost key is
    lost money."""
    secret = new_key()
    text = f"0x{secret.hex()}\n" if password is None else write_keystore(secret, password)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return Wallet(secret)


def read_wallet(path: Path) -> Wallet:
    """The wallet of a key file that is its owner's alone. Raises Refused, naming what is wrong with it."""
    return _wallet_in(path, *_text_of(path))


def _wallet_in(path: Path, text: str, others_read: bool) -> Wallet:
    key = _require_own(path, text, others_read).strip().removeprefix("0x")
    try:
        return Wallet(bytes.fromhex(key))
    except ValueError:  # Refused, for a number that is no key, among them
        raise Refused(f"{path} does not hold a private key in hex", param=str(path)) from None


def _text_of(path: Path) -> tuple[str, bool]:
    """Its text, read once since it may be a pipe; and True for a file that others can read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        # A pipe has nobody else at its end, and Windows no permissions in the mode.
        others_read = sys.platform != "win32" and stat.S_ISREG(mode) and bool(mode & _OTHERS)
        return file.read(_LONGEST), others_read


def _require_own(path: Path, text: str, others_read: bool) -> str:
    if others_read:
        raise Refused(f"{path} must be readable by its owner alone (chmod 600 {path})", param=str(path))
    return text
