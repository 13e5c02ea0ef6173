"""Encrypted keystores: JSON files of version 3, in which geth, clef, cast and eth-account store a private key."""

import json
import secrets
from typing import Any

from common.extras import DISTRIBUTION
from common.refusal import Refused
from common.secp256k1 import Wallet


def open_keystore(document: bytes | str, password: str) -> Wallet:
    """Decrypt a keystore and return its wallet. Raises Refused.

    The key derivation takes about a second and hundreds of MiB of memory, as set in the file.
    """
    try:
        fields = json.loads(document)
    except ValueError:
        raise Refused("must be a JSON keystore file") from None
    try:
        return Wallet(bytes(_account().decrypt(fields, password)))
    except ValueError as wrong:
        # eth-account reports a wrong password as a MAC mismatch.
        why = "wrong password" if "MAC mismatch" in str(wrong) else str(wrong)
        raise Refused(f"cannot be opened: {why}") from None
    except (AttributeError, KeyError, TypeError, NotImplementedError):
        raise Refused("must be a JSON keystore file of version 3") from None


def write_keystore(wallet_key: bytes, password: str) -> str:
    """Return the keystore document of a key, encrypted with a password."""
    if not password:
        raise Refused("the password of a keystore must not be empty")
    return json.dumps(_account().encrypt(wallet_key, password)) + "\n"


def new_key() -> bytes:
    """Return a random private key."""
    while True:
        key = secrets.token_bytes(32)
        try:
            Wallet(key)
        except ValueError:  # beyond the curve's order, once in 2^128
            continue
        return key


def _account() -> Any:
    """Return eth-account's `Account`, which belongs to an extra."""
    try:
        from eth_account import Account  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError:
        raise Refused(
            f"opening encrypted keystores needs the Python package eth-account: pip install '{DISTRIBUTION}[keystore]'"
        ) from None
    return Account
