"""The provider's key files: the wallet that signs its ops, and the X25519 key that orders are sealed to."""

import os
import secrets
from pathlib import Path

import attrs

from common.box import PublicKey, SecretKey
from common.secp256k1 import Wallet

WALLET_FILE = "wallet.key"
BOX_FILE = "box.key"


@attrs.frozen(slots=True)
class Identity:
    """What the provider publishes of itself."""

    operator: bytes
    box_key: PublicKey


def create_identity(directory: Path) -> Identity:
    """Fresh keys in `directory`, one file each, readable by their owner alone. Never overwrites."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (WALLET_FILE, BOX_FILE):
        if (directory / name).exists():
            raise FileExistsError(0, "exists already", str(directory / name))
    wallet_secret, box_secret = secrets.token_bytes(32), secrets.token_bytes(32)
    identity = Identity(Wallet(wallet_secret).address, SecretKey(box_secret).public)
    _store(directory / WALLET_FILE, wallet_secret)
    _store(directory / BOX_FILE, box_secret)
    return identity


def _store(path: Path, secret: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write("0x" + secret.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
