"""Secret keys: read from a file, a systemd credential or an environment variable, never from the configuration."""

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
from common.settings.kinds import parsed

T = TypeVar("T")

_KEY: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)
_PLACE: Final = re.compile(r"/.*|\$[A-Za-z_][A-Za-z0-9_]*|[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
WALLET_FILE = "wallet.key"  # signs the provider's ops
PASSWORD_FILE = "wallet.password"  # noqa: S105 - a file's name: the password of a wallet key that is an encrypted keystore
BOX_FILE = "box.key"  # the X25519 key that orders are sealed to


@attrs.frozen(slots=True)
class SecretPlace:
    """Place of a secret: the absolute path of a file, the name of a credential, or $VARIABLE."""

    written: str

    @classmethod
    def parse(cls, text: str) -> "SecretPlace":
        if _KEY.fullmatch(text):
            raise Refused("must name the place of a key, and not hold the key")
        if not _PLACE.fullmatch(text):
            raise ValueError
        return cls(text)

    @property
    def file(self) -> Path | None:
        return Path(self.written) if self.written.startswith("/") else None

    def read(self, environ: Mapping[str, str]) -> str:
        """Return the text of the secret. Raise `Refused`."""
        if self.file is not None:
            return _content(self.file)
        if self.written.startswith("$"):
            variable = self.written.removeprefix("$")
            if not environ.get(variable):
                raise Refused(f"names the environment variable {variable}, which is not set")
            return environ[variable]
        return _content(_credentials(environ) / self.written)


secret_place: Final = parsed("the path of a file, the name of a credential or $VARIABLE", SecretPlace.parse)


def read_key(place: SecretPlace, environ: Mapping[str, str], make: Callable[[bytes], T]) -> T:
    """Return the key of 32 bytes. Raise `Refused`."""
    return _key_of(place.read(environ), make)


def read_wallet(place: SecretPlace, password: str | None, environ: Mapping[str, str]) -> Wallet:
    """Return the wallet of a key in hex, or of an encrypted keystore. Raise `Refused`."""
    text = place.read(environ)
    if not text.startswith("{"):
        return _key_of(text, Wallet)
    if password is None:
        raise Refused("names an encrypted keystore: set wallet_password to the place of its password")
    return open_keystore(text, password)


def _key_of(text: str, make: Callable[[bytes], T]) -> T:
    if not _KEY.fullmatch(text):
        raise Refused("must name a key of 32 bytes in hex")
    return make(bytes.fromhex(text.removeprefix("0x")))


def _content(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Refused(f"names {path}, which cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise Refused(f"names {path}, which must hold a key in ASCII characters")
    return text


def _credentials(environ: Mapping[str, str]) -> Path:
    directory = environ.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise Refused(
            "names a credential, but there are none: create a folder `credentials` beside the configuration, or set"
            " CREDENTIALS_DIRECTORY as systemd does with LoadCredential="
        )
    return Path(directory)


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
