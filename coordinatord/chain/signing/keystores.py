"""Read and write key files: encrypted keystores with passwords, and private files with a key in hex.

A key is never a command-line argument, because arguments show in the process list and in the shell history.
"""

import os
import stat
from collections.abc import Callable, Mapping
from getpass import getpass
from pathlib import Path
from typing import Final

from common.daemon.process import Fatal
from common.keystores import encrypt_keystore, new_private_key, open_keystore
from common.refusal import Refused
from coordinatord.chain.signing.signers import LocalKey

PASSWORD_VARIABLE: Final = "MARKET_KEYSTORE_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_CREDENTIAL: Final = "market_keystore_password"  # noqa: S105 - the name of a credential


def load_keystore(path: Path, password: Callable[[], str], setting: str = "--keystore") -> LocalKey:
    """Decrypt the key in a keystore of geth, clef, cast or eth-account."""
    document = read_private_file(path, setting)
    try:
        return LocalKey.from_wallet(open_keystore(document, password()))
    except Refused as wrong:
        raise Fatal(f"{setting} {path} {wrong}") from None


def create_keystore(path: Path, password: str) -> str:
    """Create a key, write it encrypted to a new file, and return its address."""
    key = new_private_key()
    try:
        document = encrypt_keystore(key, password)
    except Refused as wrong:
        raise Fatal(str(wrong)) from None
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Fatal(f"--out {path} cannot be written: {error.strerror}") from None
    return LocalKey.from_key(key).address


def load_key_file(path: Path) -> LocalKey:
    """Read a private file that contains one key in hex."""
    text = read_private_file(path, "--key-file").strip()
    try:
        return LocalKey.from_key(bytes.fromhex(text.removeprefix("0x")))
    except ValueError:
        raise Fatal(f"--key-file {path} must contain one private key of 32 bytes in hex") from None


def read_keystore_password(file: Path | None, environ: Mapping[str, str]) -> str:
    """Return the password from the first source present: the file, the variable, the systemd credential, the
    terminal."""
    if file is not None:
        return read_private_file(file, "--password-file").rstrip("\r\n")
    if environ.get(PASSWORD_VARIABLE):
        return environ[PASSWORD_VARIABLE]
    if environ.get("CREDENTIALS_DIRECTORY"):
        credential = Path(environ["CREDENTIALS_DIRECTORY"]) / PASSWORD_CREDENTIAL
        if credential.exists():
            return read_private_file(credential, PASSWORD_CREDENTIAL).rstrip("\r\n")
    return getpass("Password of the keystore: ")


def read_private_file(path: Path, setting: str) -> str:
    """Return the text of a file that only its owner may read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            mode = status.st_mode
            # If another user owns the file (such as a systemd credential), the group bits reflect its access list.
            forbidden = stat.S_IRWXO | (stat.S_IRWXG if status.st_uid == os.geteuid() else stat.S_IWGRP)
            if mode & forbidden:
                raise Fatal(
                    f"{setting} {path} must be readable only by its owner: it has mode {stat.S_IMODE(mode):04o}; "
                    f"run `chmod 600 {path}`"
                )
            return file.read().decode("utf-8")
    except OSError as missing:
        raise Fatal(f"{setting} {path} cannot be read: {missing.strerror}") from None
    except UnicodeDecodeError:
        raise Fatal(f"{setting} {path} must be UTF-8 text") from None
