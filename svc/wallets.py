"""Wallets: a key, a key file, an encrypted keystore, or a program that signs.

    SVC_WALLET_KEY          the private key: 32 bytes of hex
    SVC_WALLET_KEY_FILE     a file with the private key, as `svc keygen` writes it, or a JSON keystore of version 3, as
                            `svc keygen --encrypted`, geth, clef and cast write it; the keystore's password is in
                            SVC_KEYSTORE_PASSWORD_FILE, or the command line prompts for it
    SVC_SIGNER_COMMAND      a program that reads EIP-712 JSON and prints the signature for SVC_WALLET_ADDRESS

Set only one of these variables, so that it is clear which account pays.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from common.keystores import open_keystore
from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.key_files import parse_wallet, read_key_text, require_private_file
from svc.signer_command import COMMAND_VARIABLE, signer_from_command
from svc.signers import LocalSigner, Signer
from svc.variables import Variables

KEY_VARIABLE: Final = "SVC_WALLET_KEY"
KEY_FILE_VARIABLE: Final = "SVC_WALLET_KEY_FILE"
PASSWORD_FILE_VARIABLE: Final = "SVC_KEYSTORE_PASSWORD_FILE"  # noqa: S105 - the name of a variable
WALLET_VARIABLES: Final = (KEY_VARIABLE, KEY_FILE_VARIABLE, COMMAND_VARIABLE)

_UNCHANGED_ERROR_PARAMS: Final = frozenset({PASSWORD_FILE_VARIABLE})

AskPassword = Callable[[Path], str]


def read_signer(
    variables: Variables, key_file: Path | None = None, ask_password: AskPassword | None = None
) -> Signer | None:
    """Return the signer of the configured wallet, or None if no wallet is set. Raises Refused. No message shows a key.

    `key_file`, encrypted or not, overrides the variables. `ask_password` is called for a keystore if no password file
    is set.
    """
    if key_file is not None:
        return LocalSigner(_open_wallet(key_file, variables, ask_password))
    values = (variables.wallet_key, variables.wallet_key_file, variables.signer_command)
    configured = [name for name, value in zip(WALLET_VARIABLES, values, strict=True) if value]
    if len(configured) > 1:
        raise Refused(f"{' and '.join(configured)} are set at the same time: unset all but one", configured[0])
    if variables.wallet_key:
        return LocalSigner(_parse_key(variables.wallet_key))
    if variables.wallet_key_file:
        return LocalSigner(_open_wallet(Path(variables.wallet_key_file), variables, ask_password))
    if variables.signer_command:
        return signer_from_command(variables.signer_command, variables.wallet_address)
    return None


def _parse_key(key: str) -> Wallet:
    try:
        return Wallet(bytes.fromhex(key.strip().removeprefix("0x")))
    except ValueError:  # includes Refused, for a number that is not a valid key
        raise Refused(f"{KEY_VARIABLE} must be a valid private key: 32 bytes of hex", KEY_VARIABLE) from None


def _open_wallet(path: Path, variables: Variables, ask_password: AskPassword | None) -> Wallet:
    try:
        text, readable_by_others = read_key_text(path)
        if text.lstrip().startswith("{"):
            return open_keystore(text, read_password(path, variables.keystore_password_file, ask_password))
        return parse_wallet(path, text, readable_by_others)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", KEY_FILE_VARIABLE) from None
    except Refused as error:
        message = error.message if str(path) in error.message or error.param else f"{path} {error.message}"
        raise Refused(message, error.param if error.param in _UNCHANGED_ERROR_PARAMS else KEY_FILE_VARIABLE) from None


def read_password(path: Path, password_file: str | None, ask_password: AskPassword | None) -> str:
    """Return the password of the keystore at `path`, from `password_file` or `ask_password`. Raises Refused."""
    if password_file:
        try:
            return require_private_file(Path(password_file), *read_key_text(Path(password_file))).rstrip("\r\n")
        except OSError as error:
            raise Refused(
                f"{PASSWORD_FILE_VARIABLE}: {password_file}: {error.strerror}", PASSWORD_FILE_VARIABLE
            ) from None
        except Refused as error:
            raise Refused(error.message, PASSWORD_FILE_VARIABLE) from None
    if ask_password is None:
        raise Refused(
            f"{path} is encrypted: set {PASSWORD_FILE_VARIABLE} to a file with its password", PASSWORD_FILE_VARIABLE
        )
    return ask_password(path)
