"""Encrypted keystores: the JSON files of version 3 in which geth, clef, cast and eth-account keep a private key."""

import json
import secrets
from typing import Any

from common.extras import DISTRIBUTION
from common.refusal import Refused
from common.secp256k1 import Wallet


def open_keystore(document: bytes | str, password: str) -> Wallet:
    """The wallet of a keystore. Takes a second and hundreds of MiB of memory, as its maker chose. Raises Refused."""
    try:
        fields = json.loads(document)
    except ValueError:
        raise Refused("must be a JSON keystore file") from None
    try:
        return Wallet(bytes(_account().decrypt(fields, password)))
    except ValueError as wrong:
        # eth-account compares a code of the password with the one in the file.
        why = "wrong password" if "MAC mismatch" in str(wrong) else str(wrong)
        raise Refused(f"cannot be opened: {why}") from None
    except (AttributeError, KeyError, TypeError, NotImplementedError):
        raise Refused("must be a JSON keystore file of version 3") from None


def write_keystore(wallet_key: bytes, password: str) -> str:
    """The document that keeps a key behind a password."""
    if not password:
        raise Refused("the password of a keystore must not be empty")
    return json.dumps(_account().encrypt(wallet_key, password)) + "\n"


def new_key() -> bytes:
    """A private key that nobody has."""
    while True:
        key = secrets.token_bytes(32)
        try:
            Wallet(key)
        except ValueError:  # beyond the curve's order, once in 2^128
            continue
        return key


def _account() -> Any:
    """eth-account's, which only those who keep keys in such files have to install."""
    try:
        from eth_account import Account  # noqa: PLC0415 - a quarter of a second of imports, for few
    except ModuleNotFoundError:
        raise Refused(
            f"opening encrypted keystores needs the Python package eth-account: pip install '{DISTRIBUTION}[keystore]'"
        ) from None
    return Account
