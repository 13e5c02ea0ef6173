"""Secret keys: read from a file, an environment variable or a systemd credential, never from the configuration."""

import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import attrs

from common.box import PublicKey, SecretKey
from common.keystores import open_keystore
from common.refusal import Refused
from common.scalars import hex_of
from common.secp256k1 import Wallet
from svcd.base.toml import Mistake

T = TypeVar("T")

_KEY: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)


@attrs.frozen(slots=True)
class KeySource:
    """Place of a secret: one of the keys `<name>_file`, `<name>_env` and `<name>_credential` of a table."""

    name: str
    file: Path | None
    variable: str | None
    credential: str | None


def read_secret(source: KeySource, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the configured key and the secret's text, or None if no key is set. Raise `Mistake`."""
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
    """Return the configured key of 32 bytes, or None. Raise `Mistake`."""
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


def read_wallet(source: KeySource, password: KeySource, environ: Mapping[str, str]) -> Wallet | None:
    """Return the wallet from a key in hex, or from an encrypted keystore and its password."""
    found = read_secret(source, environ)
    if found is None or not found[1].startswith("{"):
        return read_key(source, environ, Wallet)
    opening = read_secret(password, environ)
    if opening is None:
        wanted = f"{password.name}_file, {password.name}_env or {password.name}_credential"
        raise _mistake(found[0], f"{found[0]} leads to an encrypted keystore: {wanted} must lead to its password")
    try:
        return open_keystore(found[1], opening[1])
    except Refused as wrong:
        raise _mistake(found[0], f"{found[0]} {wrong.message}") from None


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
        raise _mistake(
            key,
            "no credentials: create a folder `credentials` beside the configuration, or set CREDENTIALS_DIRECTORY as"
            " systemd does with LoadCredential=",
        )
    return Path(directory)


WALLET_FILE = "wallet.key"  # signs the provider's ops
PASSWORD_FILE = "wallet.password"  # noqa: S105 - a file's name: the password of a wallet key that is an encrypted keystore
BOX_FILE = "box.key"  # the X25519 key that orders are sealed to


@attrs.frozen(slots=True)
class Identity:
    """Public identity of a provider."""

    operator: bytes
    box_key: PublicKey


def create_identity(directory: Path) -> Identity:
    """Create new keys in `directory`, readable only by their owner. Existing files are not overwritten."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (WALLET_FILE, BOX_FILE):
        if (directory / name).exists():
            raise FileExistsError(0, "exists already", str(directory / name))
    wallet_secret, box_secret = secrets.token_bytes(32), secrets.token_bytes(32)
    identity = Identity(Wallet(wallet_secret).address, SecretKey(box_secret).public)
    store_secret(directory / WALLET_FILE, hex_of(wallet_secret) + "\n")
    store_secret(directory / BOX_FILE, hex_of(box_secret) + "\n")
    return identity


def create_box(directory: Path) -> PublicKey:
    """Create a new box key in `directory`."""
    secret = secrets.token_bytes(32)
    store_secret(directory / BOX_FILE, hex_of(secret) + "\n")
    return SecretKey(secret).public


def store_secret(path: Path, text: str) -> None:
    """Write the text to a new file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
