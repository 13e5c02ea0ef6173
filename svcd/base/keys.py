"""Secret keys: read from a file, an environment variable or a systemd credential, never from the configuration."""

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
from svcd.base.toml import Mistake

T = TypeVar("T")

_KEY: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)


@attrs.frozen(slots=True)
class KeySource:
    """The keys `<name>_file`, `<name>_env` and `<name>_credential` of a table, one of which names a secret's place."""

    name: str
    file: Path | None
    variable: str | None
    credential: str | None


def read_secret(source: KeySource, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The key that is given and the text that it leads to; None when none is given. Raises `Mistake`."""
    places = (("file", source.file), ("env", source.variable), ("credential", source.credential))
    given = [f"{source.name}_{kind}" for kind, place in places if place is not None]
    if not given:
        return None
    if len(given) > 1:
        raise _mistake(given[1], f"{given[1]} stands beside {given[0]}; give one of them")
    (key,) = given
    if source.file is not None:
        return key, _content(source.file, key)
    if source.credential is not None:
        return key, _content(_credentials(environ, key) / source.credential, key)
    variable = source.variable or ""
    if not environ.get(variable):
        raise _mistake(key, f"the environment variable {variable} is not set")
    return key, environ[variable]


def read_key(source: KeySource, environ: Mapping[str, str], make: Callable[[bytes], T]) -> T | None:
    """The key of 32 bytes that is given, if any. Raises `Mistake`."""
    found = read_secret(source, environ)
    if found is None:
        return None
    key, text = found
    if not _KEY.fullmatch(text):
        raise _mistake(key, f"{key} must lead to a key of 32 bytes in hex")
    try:
        return make(bytes.fromhex(text.removeprefix("0x")))
    except Refused as weak:
        raise _mistake(key, f"{key}: {weak.message}") from None


def _mistake(key: str, message: str) -> Mistake:
    return Mistake.at((key,), message)


def _content(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise _mistake(key, f"{path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise _mistake(key, f"{path} must hold a key in ASCII characters")
    return text


def _credentials(environ: Mapping[str, str], key: str) -> Path:
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise _mistake(key, "CREDENTIALS_DIRECTORY is not set: systemd sets it for the service (LoadCredential=)")
    return Path(directory)


WALLET_FILE = "wallet.key"  # signs the provider's ops
BOX_FILE = "box.key"  # the X25519 key that orders are sealed to


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
