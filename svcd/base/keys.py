"""Read secret keys from a file, a systemd credential or an environment variable, never from svcd.toml itself."""

import errno
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
from common.settings.kinds import parsed_string

T = TypeVar("T")

_HEX_KEY_PATTERN: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)
_LOCATION_PATTERN: Final = re.compile(r"/.*|\$[A-Za-z_][A-Za-z0-9_]*|[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
WALLET_FILE = "wallet.key"  # signs the provider's ops
PASSWORD_FILE = "wallet.password"  # noqa: S105 - a file's name; the file has the keystore's password
BOX_KEY_FILE = "box.key"  # the X25519 key to which clients seal orders


@attrs.frozen(slots=True)
class SecretLocation:
    """Location of a secret: the absolute path of a file, the name of a systemd credential, or $VARIABLE."""

    text: str

    @classmethod
    def parse(cls, text: str) -> "SecretLocation":
        if _HEX_KEY_PATTERN.fullmatch(text):
            raise Refused("must be the location of a key, not the key itself")
        if not _LOCATION_PATTERN.fullmatch(text):
            raise ValueError
        return cls(text)

    @property
    def file(self) -> Path | None:
        return Path(self.text) if self.text.startswith("/") else None

    def read(self, environ: Mapping[str, str]) -> str:
        """Return the secret's text. Raise `Refused` if the secret is missing or unreadable."""
        if self.file is not None:
            return _read_secret_file(self.file)
        if self.text.startswith("$"):
            variable = self.text.removeprefix("$")
            if not environ.get(variable):
                raise Refused(f"names the environment variable {variable}, which is not set")
            return environ[variable]
        return _read_secret_file(_credentials_directory(environ) / self.text)


secret_location: Final = parsed_string(
    "the path of a file, the name of a credential or $VARIABLE", SecretLocation.parse
)


def read_key(location: SecretLocation, environ: Mapping[str, str], make_key: Callable[[bytes], T]) -> T:
    """Return the key made from 32 bytes in hex. Raise `Refused` for a missing or malformed key."""
    return _parse_key(location.read(environ), make_key)


def read_wallet(location: SecretLocation, password: str | None, environ: Mapping[str, str]) -> Wallet:
    """Return the wallet of a hex key or an encrypted keystore. Raise `Refused` for a missing or malformed key."""
    text = location.read(environ)
    if not text.startswith("{"):
        return _parse_key(text, Wallet)
    if password is None:
        raise Refused("names an encrypted keystore: set wallet_password to the location of the keystore's password")
    return open_keystore(text, password)


def _parse_key(text: str, make_key: Callable[[bytes], T]) -> T:
    if not _HEX_KEY_PATTERN.fullmatch(text):
        raise Refused("must name a key of 32 bytes in hex")
    return make_key(bytes.fromhex(text.removeprefix("0x")))


def _read_secret_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Refused(f"names {path}, which cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise Refused(f"names {path}, which must contain a key or password in ASCII characters")
    return text


def _credentials_directory(environ: Mapping[str, str]) -> Path:
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise Refused(
            "names a credential, but the credentials directory is missing: create a folder `credentials` beside the"
            " configuration, or set CREDENTIALS_DIRECTORY as systemd does with LoadCredential="
        )
    return Path(directory)


@attrs.frozen(slots=True)
class Identity:
    """Public identity of a provider: its wallet's address and its box key."""

    operator: bytes
    box_key: PublicKey


def create_identity(directory: Path) -> Identity:
    """Create new keys in `directory`, readable only by their owner. Raise FileExistsError for existing keys."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (WALLET_FILE, BOX_KEY_FILE):
        if (directory / name).exists():
            raise FileExistsError(errno.EEXIST, "the key file already exists", str(directory / name))
    wallet_secret, box_secret = secrets.token_bytes(32), secrets.token_bytes(32)
    identity = Identity(Wallet(wallet_secret).address, SecretKey(box_secret).public)
    store_secret(directory / WALLET_FILE, hex_of(wallet_secret) + "\n")
    store_secret(directory / BOX_KEY_FILE, hex_of(box_secret) + "\n")
    return identity


def create_box_key(directory: Path) -> PublicKey:
    """Create a new box key in `directory`."""
    secret = secrets.token_bytes(32)
    store_secret(directory / BOX_KEY_FILE, hex_of(secret) + "\n")
    return SecretKey(secret).public


def store_secret(path: Path, text: str) -> None:
    """Write the text to a new file that only its owner can read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
