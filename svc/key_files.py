"""Key files of this client: one wallet key in hex, readable only by its owner."""

import os
import stat
import sys
from pathlib import Path
from typing import Final

from common.keystores import new_key, write_keystore
from common.refusal import Refused
from common.secp256k1 import Wallet

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_LONGEST: Final = 1 << 16


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
    return wallet_in(path, *read_key_text(path))


def wallet_in(path: Path, text: str, others_read: bool) -> Wallet:
    key = require_own_file(path, text, others_read).strip().removeprefix("0x")
    try:
        return Wallet(bytes.fromhex(key))
    except ValueError:  # Refused, for a number that is no key, among them
        raise Refused(f"{path} does not hold a private key in hex", param=str(path)) from None


def read_key_text(path: Path) -> tuple[str, bool]:
    """Its text, read once since it may be a pipe; and True for a file that others can read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        # A pipe has nobody else at its end, and Windows no permissions in the mode.
        others_read = sys.platform != "win32" and stat.S_ISREG(mode) and bool(mode & _OTHERS)
        return file.read(_LONGEST), others_read


def require_own_file(path: Path, text: str, others_read: bool) -> str:
    if others_read:
        raise Refused(f"{path} must be readable by its owner alone (chmod 600 {path})", param=str(path))
    return text
