"""The client's key file: one wallet key in hex, readable by its owner alone."""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from common.refusal import Refused
from common.secp256k1 import Wallet

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LONGEST: Final = 4096


def create_wallet(path: Path) -> Wallet:
    """A fresh wallet, its key stored at `path`. Never overwrites: a lost key is lost money."""
    secret = secrets.token_bytes(32)
    wallet = Wallet(secret)  # refuses the few values that are no key
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write("0x" + secret.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return wallet


def read_wallet(path: Path) -> Wallet:
    """The wallet of a key file that is its owner's alone. Raises Refused, naming what is wrong with it."""
    with path.open(encoding="ascii", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        # A pipe has nobody else at its end, and permissions that say nothing.
        if os.name == "posix" and stat.S_ISREG(mode) and mode & _OTHERS:
            raise Refused(f"{path} must be readable by its owner alone (chmod 600 {path})", param=str(path))
        text = file.read(_LONGEST).strip().removeprefix("0x")
    try:
        return Wallet(bytes.fromhex(text))
    except ValueError:  # Refused, for a number that is no key, among them
        raise Refused(f"{path} does not hold a private key in hex", param=str(path)) from None
