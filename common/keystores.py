"""Read and write encrypted keystores (JSON, version 3), the format in which geth, clef and cast store private keys."""

import json
import secrets
from typing import Any

from common.extras import DISTRIBUTION
from common.refusal import Refused
from common.secp256k1 import Wallet


def open_keystore(document: bytes | str, password: str) -> Wallet:
    """Decrypt a keystore and return its wallet. Refuse a malformed keystore and a wrong password.

    The error message completes a sentence that starts with the file's name, such as "must be a JSON keystore file".
    Decryption typically takes a second and hundreds of MiB of memory; the keystore sets this cost.
    """
    try:
        fields = json.loads(document)
    except ValueError:
        raise Refused("must be a JSON keystore file") from None
    try:
        return Wallet(bytes(_account_class().decrypt(fields, password)))
    except ValueError as error:
        # eth-account reports a wrong password as a MAC mismatch.
        reason = "wrong password" if "MAC mismatch" in str(error) else str(error)
        raise Refused(f"cannot be opened: {reason}") from None
    except (AttributeError, KeyError, TypeError, NotImplementedError):
        raise Refused("must be a JSON keystore file of version 3") from None


def encrypt_keystore(wallet_key: bytes, password: str) -> str:
    """Return the keystore document of a key, encrypted with a password."""
    if not password:
        raise Refused("the password of a keystore must not be empty")
    return json.dumps(_account_class().encrypt(wallet_key, password)) + "\n"


def new_private_key() -> bytes:
    """Return a random private key."""
    while True:
        key = secrets.token_bytes(32)
        try:
            Wallet(key)
        except ValueError:  # zero, or not below the curve's order, which happens once in 2^128
            continue
        return key


def _account_class() -> Any:
    """Return eth-account's `Account` class. The extra `keystore` installs the package."""
    try:
        from eth_account import Account  # noqa: PLC0415 - optional dependency, and slow to import
    except ModuleNotFoundError:
        raise Refused(
            f"encrypted keystores need the Python package eth-account: pip install '{DISTRIBUTION}[keystore]'"
        ) from None
    return Account
