"""Where the wallet's key comes from: a named file, the environment, or a file that the environment names."""

import os
from collections.abc import Mapping
from pathlib import Path

from common.refusal import Refused
from common.secp256k1 import Wallet
from svc.keys import read_wallet

KEY: str = "SVC_WALLET_KEY"
KEY_FILE: str = "SVC_WALLET_KEY_FILE"


def wallet_of(key_file: Path | None, environment: Mapping[str, str] | None = None) -> Wallet | None:
    """The wallet, or None when no key is given anywhere. Raises Refused; no message ever shows a key.

    A file that is named on the command line wins over the environment. Two keys in the environment are refused: which
    of two accounts pays is nothing to guess.
    """
    known = os.environ if environment is None else environment
    if key_file is not None:
        return _read(key_file)
    key, named = known.get(KEY), known.get(KEY_FILE)
    if key and named:
        raise Refused(f"{KEY} and {KEY_FILE} are both set: keep one", KEY)
    if named:
        return _read(Path(named))
    return _parsed(key) if key else None


def _read(path: Path) -> Wallet:
    try:
        return read_wallet(path)
    except OSError as trouble:
        raise Refused(f"{path}: {trouble.strerror}", KEY_FILE) from None
    except Refused as wrong:
        raise Refused(wrong.message, KEY_FILE) from None


def _parsed(key: str) -> Wallet:
    try:
        return Wallet(bytes.fromhex(key.strip().removeprefix("0x")))
    except ValueError:  # Refused, for a number that is no key, among them
        raise Refused(f"{KEY} does not hold a private key in hex", KEY) from None
