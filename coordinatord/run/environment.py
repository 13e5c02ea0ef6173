"""Environment variables read into typed fields: kinds of values, their ranges, and secrets from systemd credentials.

A field declares its variable, its default, its range and a sentence for the operator. A wrong value stops the boot with
the variable's name. A secret may come from a systemd credential named like the variable, in lower case.
"""

import difflib
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from common.address_book import AddressBook
from common.daemon.process import Fatal
from common.daemon.secrets import Secret
from common.refusal import Refused
from common.scalars import checksummed
from common.secp256k1 import Wallet

T = TypeVar("T")

REQUIRED: Final = object()
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_NEAR: Final = 0.84  # of 1: one or two letters of a name
# What systemd and shells set that begins as a setting does.
_NOT_OURS: Final = frozenset(
    # Systemd's, and the certificates of a Python library that many machines name in every shell.
    {"CREDENTIALS_DIRECTORY", "JOURNAL_STREAM", "LOGS_DIRECTORY", "LOG_NAMESPACE", "REQUESTS_CA_BUNDLE"}
)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_KEY: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)


def variable(name: str, read: Callable[[str], T], about: str, default: object = REQUIRED, secret: bool = False) -> Any:
    return attrs.field(metadata={"variable": name, "read": read, "about": about, "default": default, "secret": secret})


def integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"0|-?[1-9][0-9]*", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"must be an integer in {low}..{high}")
        return int(text)

    read.__doc__ = f"{low}–{high}"
    return read


def choice(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError("must be one of " + ", ".join(choices))
        return text

    read.__doc__ = ", ".join(choices)
    return read


def text(text: str) -> str:
    return text


def url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", text):
        raise ValueError("must be an http:// or https:// address")
    return text.rstrip("/")


def boolean(text: str) -> bool:
    if text not in ("1", "0", "true", "false"):
        raise ValueError("must be 1, 0, true or false")
    return text in ("1", "true")


def origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(","))
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(f"must be exact origins (scheme://host[:port]), comma-separated; not {origin!r}")
    return origins


def ip_addresses(text: str) -> tuple[str, ...]:
    """Read IP addresses. Networks are refused, because callers are distinguished by single addresses."""
    try:
        return tuple(str(ipaddress.ip_address(part.strip())) for part in text.split(","))
    except ValueError:
        raise ValueError("must be IP addresses, comma-separated (no networks, no names)") from None


def private_key(text: str) -> Secret:
    if not _KEY.fullmatch(text):
        raise ValueError("must be a private key of 32 bytes in hex")
    digits = text.removeprefix("0x").lower()
    try:
        Wallet(bytes.fromhex(digits))
    except Refused as wrong:
        raise ValueError(f"is no key: {wrong}") from None
    return Secret(digits)


def private_keys(text: str) -> tuple[Secret, ...]:
    return tuple(private_key(part.strip()) for part in text.split(","))


def account(text: str) -> str:
    """Read an address. In mixed case its checksum must match, which reveals typing errors."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError("must be an address: 0x and 40 hex digits")
    right = checksummed(bytes.fromhex(text[2:]))
    if text not in (right, text.lower()):
        raise ValueError("must be an address whose checksum is right, or one in lower case")
    return right


def secret(text: str) -> Secret:
    return Secret(text)


def secret_url(text: str) -> Secret:
    return Secret(url(text))


def secret_urls(text: str) -> tuple[Secret, ...]:
    return tuple(secret_url(part.strip()) for part in text.split(","))


def database_urls(text: str) -> tuple[Secret, ...]:
    urls = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"postgres(ql)?://[^\s/]+/\S+", url) for url in urls):
        raise ValueError("must be postgresql://user:password@host:port/database, comma-separated (a comma is %2C)")
    return tuple(Secret(url) for url in urls)


def set_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set. An empty value counts as unset."""
    return {name: value for name, value in environ.items() if value != ""}


def read_fields(fields: Sequence["attrs.Attribute[Any]"], present: Mapping[str, str]) -> dict[str, object]:
    """Return the values of the fields by name. Raise Fatal with the name of a wrong variable."""
    credentials = Path(present["CREDENTIALS_DIRECTORY"]) if "CREDENTIALS_DIRECTORY" in present else None
    values: dict[str, object] = {}
    for field in fields:
        name, about = field.metadata["variable"], field.metadata
        value = present.get(name)
        if value is None and about["secret"] and credentials is not None:
            value = _credential(credentials / name.lower())
        if value is not None:
            try:
                values[field.name] = about["read"](value)
            except ValueError as error:
                raise Fatal(f"{name} {error}") from None
        elif about["default"] is REQUIRED:
            raise Fatal(f"{name} is required ({about['about']})")
        else:
            values[field.name] = about["default"]
    return values


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> dict[str, str | None]:
    """Return the variables that look like settings but are not, each with the most similar setting or None.

    A name looks like a setting when it has a setting's first word, or is spelt almost like a setting.
    """
    beginnings = {name.partition("_")[0] for name in known if "_" in name} - {"SENTRY"}  # its SDK has more of its own
    found: dict[str, str | None] = {}
    for name in sorted(set_variables(environ)):
        if name in known or name in _NOT_OURS or not _VARIABLE.fullmatch(name):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
        if near or (name.partition("_")[0] in beginnings and "_" in name):
            found[name] = near[0] if near else None
    return found


def _credential(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Fatal(f"the credential {path.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Fatal(f"the credential {path.name} must be UTF-8 text") from None


def read_addresses(present: Mapping[str, str]) -> AddressBook:
    """Return the address book, from whichever of its two variables is set."""
    inline, path = present.get("ADDRESSES_JSON"), present.get("ADDRESSES_FILE")
    if (inline is None) == (path is None):
        raise Fatal("exactly one of ADDRESSES_FILE and ADDRESSES_JSON must be set")
    name = "ADDRESSES_JSON" if inline is not None else "ADDRESSES_FILE"
    try:
        raw = inline.encode() if inline is not None else Path(str(path)).read_bytes()
        return AddressBook.parse(raw)
    except OSError as missing:
        raise Fatal(f"{name}: {path}: {missing.strerror}") from None
    except Refused as wrong:
        raise Fatal(f"{name}: {wrong}") from None
