"""Where a secret key comes from: a file, an environment variable, or a systemd credential. Never the configuration."""

import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import attrs

from common.box import PublicKey, SecretKey
from common.refusal import Refused
from common.secp256k1 import Wallet
from svcd.base.toml import Table

T = TypeVar("T")

_KEY: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)


def read_key(table: Table, environ: Mapping[str, str], name: str, make: Callable[[bytes], T]) -> T | None:
    """From `<name>_file`, `<name>_env` or `<name>_credential`, whichever is given; None when none is."""
    sources = {
        f"{name}_file": lambda key: _content(table.path(key), key),
        f"{name}_env": lambda key: _variable(environ, table.text(key), key),
        f"{name}_credential": lambda key: _content(_credentials(environ, key) / table.text(key), key),
    }
    given = [key for key in sources if table.has(key)]
    if not given:
        return None
    if len(given) > 1:
        raise Refused(f"{given[1]} stands beside {given[0]}; give one of them", given[1])
    (key,) = given
    text = sources[key](key)
    if not _KEY.fullmatch(text):
        raise Refused(f"{key} leads to no key of 32 bytes in hex", key)
    try:
        return make(bytes.fromhex(text.removeprefix("0x")))
    except Refused as weak:
        raise Refused(f"{key}: {weak.message}", key) from None


def _variable(environ: Mapping[str, str], variable: str, key: str) -> str:
    if not environ.get(variable):
        raise Refused(f"the environment variable {variable} is not set", key)
    return environ[variable]


def _content(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError as broken:
        raise Refused(f"{path} cannot be read ({broken.strerror})", key) from None
    except UnicodeDecodeError:
        raise Refused(f"{path} holds no key of 32 bytes in hex", key) from None


def _credentials(environ: Mapping[str, str], key: str) -> Path:
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise Refused("there is no CREDENTIALS_DIRECTORY: systemd sets it for the service (LoadCredential=)", key)
    return Path(directory)


# The provider's key files: the wallet that signs its ops, and the X25519 key that orders are sealed to.

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
