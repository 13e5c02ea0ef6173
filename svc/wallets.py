"""Wallets: a key, a key file, an encrypted keystore, or a program that signs.

    SVC_WALLET_KEY          the private key: 32 bytes of hex
    SVC_WALLET_KEY_FILE     a file with the private key, as `svc keygen` writes it
    SVC_KEYSTORE            a JSON keystore of version 3, as geth, clef, cast and `svc keygen --encrypted` write it;
                            its password is in SVC_KEYSTORE_PASSWORD_FILE, or the command line asks for it
    SVC_SIGNER_COMMAND      a program that reads EIP-712 JSON and prints the signature for SVC_WALLET_ADDRESS;
                            SVC_SIGNER_DETERMINISTIC=1: its signatures follow RFC 6979, so that a key for results may
                            be derived from one

Only one of them may be set, so that it is clear which account pays.
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
WALLET_VARIABLES: Final = (KEY, KEY_FILE, KEYSTORE, COMMAND)

_OWN_PARAMETERS: Final = frozenset({PASSWORD_FILE})

AskPassword = Callable[[Path], str]


def read_signer(
    environment: Mapping[str, str], key_file: Path | None = None, ask_password: AskPassword | None = None
) -> Signer | None:
    """Return the wallet, or None if none is set. Raises Refused; no message shows a key.

    `key_file`, encrypted or not, overrides the environment. `ask_password` returns the password of a keystore that has
    no password file.
    """
    if key_file is not None:
        return LocalSigner(_open_wallet(key_file, KEY_FILE, environment, ask_password))
    named = [way for way in WALLET_VARIABLES if environment.get(way)]
    if len(named) > 1:
        raise Refused(f"{' and '.join(named)} are both set: unset one", named[0])
    match named:
        case []:
            return None
        case [way] if way == KEY:
            return LocalSigner(_parse_key(environment[KEY]))
        case [way] if way == COMMAND:
            return signer_by_command(environment)
        case [way]:
            return LocalSigner(_open_wallet(Path(environment[way]), way, environment, ask_password))
    raise AssertionError("one wallet variable or none")


def _parse_key(key: str) -> Wallet:
    try:
        return Wallet(bytes.fromhex(key.strip().removeprefix("0x")))
    except ValueError:  # includes Refused, for a number that is not a valid key
        raise Refused(f"{KEY} does not hold a private key: it must be 32 bytes of hex", KEY) from None


def _open_wallet(path: Path, variable: str, environment: Mapping[str, str], ask_password: AskPassword | None) -> Wallet:
    try:
        text, others_read = read_key_text(path)
        if text.lstrip().startswith("{"):
            return open_keystore(text, read_password(path, environment, ask_password))
        if variable == KEYSTORE:
            raise Refused(f"{path} must be a JSON keystore; {KEY_FILE} names a key file in hex")
        return wallet_in(path, text, others_read)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", variable) from None
    except Refused as error:
        message = error.message if str(path) in error.message or error.param else f"{path} {error.message}"
        raise Refused(message, error.param if error.param in _OWN_PARAMETERS else variable) from None


def read_password(path: Path, environment: Mapping[str, str], ask_password: AskPassword | None) -> str:
    """Read the password of a keystore from its file, or call `ask_password`. Raises Refused."""
    named = environment.get(PASSWORD_FILE)
    if named:
        try:
            return require_own_file(Path(named), *read_key_text(Path(named))).rstrip("\r\n")
        except OSError as error:
            raise Refused(f"{PASSWORD_FILE}: {named}: {error.strerror}", PASSWORD_FILE) from None
        except Refused as error:
            raise Refused(error.message, PASSWORD_FILE) from None
    if ask_password is None:
        raise Refused(f"{path} is encrypted: set {PASSWORD_FILE} to a file with its password", PASSWORD_FILE)
    return ask_password(path)
