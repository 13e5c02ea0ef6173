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

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from common.keystores import open_keystore
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.key_files import read_key_text, require_own_file, wallet_in
from svc.signer_command import COMMAND, signer_by_command
from svc.signers import LocalSigner, Signer

KEY: Final = "SVC_WALLET_KEY"
KEY_FILE: Final = "SVC_WALLET_KEY_FILE"
KEYSTORE: Final = "SVC_KEYSTORE"
PASSWORD_FILE: Final = "SVC_KEYSTORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable
WAYS: Final = (KEY, KEY_FILE, KEYSTORE, COMMAND)

AskPassword = Callable[[Path], str]


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
        text, others_read = read_key_text(path)
        if text.lstrip().startswith("{"):
            return open_keystore(text, password_of(path, environment, ask_password))
        if variable == KEYSTORE:
            raise Refused(f"{path} must be a JSON keystore; {KEY_FILE} names a key file in hex")
        return wallet_in(path, text, others_read)
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
            return require_own_file(Path(named), *read_key_text(Path(named))).rstrip("\r\n")
        except OSError as error:
            raise Refused(f"{PASSWORD_FILE} names {named}: {error.strerror}", PASSWORD_FILE) from None
        except Refused as wrong:
            raise Refused(wrong.message, PASSWORD_FILE) from None
    if ask_password is None:
        raise Refused(f"{path} is encrypted: set {PASSWORD_FILE} to a file that holds its password", PASSWORD_FILE)
    return ask_password(path)
