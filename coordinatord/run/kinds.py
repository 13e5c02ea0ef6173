"""Kinds of values that only settings of the coordinator have."""

import ipaddress
import re
from pathlib import Path
from typing import Final

from common.address_book import AddressBook
from common.daemon.secrets import Secret
from common.refusal import Refused
from common.scalars import checksummed
from common.secp256k1 import Wallet
from common.settings.kinds import Kind, listed, parsed, url

_ORIGIN: Final = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_KEY: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)
_DATABASE: Final = re.compile(r"postgres(ql)?://[^\s/]+/\S+")


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError
    return text


def _ip_address(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _private_key(text: str) -> Secret:
    if not _KEY.fullmatch(text):
        raise ValueError
    digits = text.removeprefix("0x").lower()
    try:
        Wallet(bytes.fromhex(digits))
    except Refused as wrong:
        raise Refused(f"is not a key: {wrong}") from None
    return Secret(digits)


def _account(text: str) -> str:
    """Read an address. In mixed case its checksum must match, which reveals typing errors."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError
    right = checksummed(bytes.fromhex(text[2:]))
    if text not in (right, text.lower()):
        raise Refused("must be an address with a correct checksum, or in lower case")
    return right


def _database_url(text: str) -> Secret:
    if not _DATABASE.fullmatch(text):
        raise ValueError
    return Secret(text)


def _secret_url(text: str) -> Secret:
    return Secret(url.from_text(text))


def _address_book(text: str) -> AddressBook:
    try:
        return AddressBook.parse(text.encode())
    except Refused as wrong:
        raise Refused(f"is not an address book: {wrong}") from None


def _address_book_file(text: str) -> AddressBook:
    try:
        return AddressBook.parse(Path(text).read_bytes())
    except OSError as error:
        raise Refused(f"cannot be read: {text}: {error.strerror}") from None
    except Refused as wrong:
        raise Refused(f"is not an address book: {text}: {wrong}") from None


address_book: Final = parsed("an address book in JSON", _address_book, "JSON")
address_book_file: Final = parsed("the file of an address book", _address_book_file, "path")
account: Final = parsed("an address: 0x and 40 hex digits", _account, "address")
secret: Final = parsed("a string that is not empty", Secret)
secret_url: Final = parsed("an http:// or https:// address", _secret_url, "http(s):// address")
private_key: Final = parsed("a private key of 32 bytes in hex", _private_key, "32 bytes in hex")
private_keys: Final = listed(private_key)
# Networks are rejected, because callers are distinguished by single addresses.
ip_addresses: Final = listed(parsed("an IP address (no network, no name)", _ip_address, "IP addresses"))
origins: Final = listed(parsed("an exact origin (scheme://host[:port])", _origin, "origins"))
database_urls: Final[Kind[tuple[Secret, ...]]] = listed(
    parsed("postgresql://user:password@host:port/database (a comma is %2C)", _database_url, "PostgreSQL URLs")
)
