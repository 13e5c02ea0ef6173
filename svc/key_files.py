"""Key files: one private key in hex, readable only by its owner."""

import os
import stat
import sys
from pathlib import Path
from typing import Final

from common.keystores import encrypt_keystore, new_private_key
from common.refusal import Refused
from common.secp256k1 import Wallet

_OTHERS_PERMISSION_BITS: Final = stat.S_IRWXG | stat.S_IRWXO
_MAX_FILE_BYTES: Final = 1 << 16


def create_wallet(path: Path, password: str | None = None) -> Wallet:
    """Create a wallet, and write its key to `path`. A password encrypts the key. Never overwrites a file."""
    secret = new_private_key()
    text = f"0x{secret.hex()}\n" if password is None else encrypt_keystore(secret, password)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return Wallet(secret)


def read_wallet(path: Path) -> Wallet:
    """Return the wallet of a key file that only its owner can read. Raises Refused."""
    return parse_wallet(path, *read_key_text(path))


def parse_wallet(path: Path, text: str, readable_by_others: bool) -> Wallet:
    key = require_private_file(path, text, readable_by_others).strip().removeprefix("0x")
    try:
        return Wallet(bytes.fromhex(key))
    except ValueError:  # includes Refused, for a number that is not a valid key
        raise Refused(f"{path} must contain a valid private key: 32 bytes of hex", param=str(path)) from None


def read_key_text(path: Path) -> tuple[str, bool]:
    """Return the text of a file, and True if other users can read the file.

    The file may be a pipe, so it is read only once.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        # Check only regular files on POSIX. A pipe has a single reader, and Windows has no permission bits.
        readable_by_others = sys.platform != "win32" and stat.S_ISREG(mode) and bool(mode & _OTHERS_PERMISSION_BITS)
        return file.read(_MAX_FILE_BYTES), readable_by_others


def require_private_file(path: Path, text: str, readable_by_others: bool) -> str:
    if readable_by_others:
        raise Refused(f"{path} must be readable only by its owner (chmod 600 {path})", param=str(path))
    return text
