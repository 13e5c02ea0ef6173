"""Readers of setting values that only the coordinator has, such as keys and address books."""

import ipaddress
import re
from pathlib import Path
from typing import Final

from common.address_book import AddressBook
from common.daemon.secrets import Secret
from common.refusal import Refused
from common.scalars import checksum_address
from common.secp256k1 import Wallet
from common.settings.kinds import Kind, list_of, parsed_string, url

_ORIGIN_PATTERN: Final = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?", re.ASCII)
_ADDRESS_PATTERN: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_KEY_PATTERN: Final = re.compile(r"(0x)?[0-9a-fA-F]{64}", re.ASCII)
_DATABASE_URL_PATTERN: Final = re.compile(r"postgres(ql)?://[^\s/]+/\S+")


def _parse_origin(text: str) -> str:
    if not _ORIGIN_PATTERN.fullmatch(text):
        raise ValueError
    return text


def _parse_ip_address(text: str) -> str:
    return str(ipaddress.ip_address(text))


def _parse_private_key(text: str) -> Secret:
    if not _KEY_PATTERN.fullmatch(text):
        raise ValueError
    digits = text.removeprefix("0x").lower()
    try:
        Wallet(bytes.fromhex(digits))
    except Refused as wrong:
        raise Refused(f"is not a valid private key: {wrong}") from None
    return Secret(digits)


def _parse_account(text: str) -> str:
    """Read an address. The checksum of a mixed-case address must match, which detects typing errors."""
    if not _ADDRESS_PATTERN.fullmatch(text):
        raise ValueError
    right = checksum_address(bytes.fromhex(text[2:]))
    if text not in (right, text.lower()):
        raise Refused("must be an address with a correct checksum, or in lower case")
    return right


def _parse_database_url(text: str) -> Secret:
    if not _DATABASE_URL_PATTERN.fullmatch(text):
        raise ValueError
    return Secret(text)


def _parse_secret_url(text: str) -> Secret:
    return Secret(url.from_text(text))


def _parse_address_book(text: str) -> AddressBook:
    try:
        return AddressBook.parse(text.encode())
    except Refused as wrong:
        raise Refused(f"is not an address book: {wrong}") from None


def _read_address_book_file(text: str) -> AddressBook:
    try:
        return AddressBook.parse(Path(text).read_bytes())
    except OSError as error:
        raise Refused(f"cannot be read: {text}: {error.strerror}") from None
    except Refused as wrong:
        raise Refused(f"is not an address book: {text}: {wrong}") from None


address_book: Final = parsed_string("an address book in JSON", _parse_address_book, "JSON")
address_book_file: Final = parsed_string("the file of an address book", _read_address_book_file, "path")
account: Final = parsed_string("an address: 0x and 40 hex digits", _parse_account, "address")
secret: Final = parsed_string("a string that is not empty", Secret)
secret_url: Final = parsed_string("an http:// or https:// address", _parse_secret_url, "http(s):// address")
private_key: Final = parsed_string("a private key of 32 bytes in hex", _parse_private_key, "32 bytes in hex")
private_keys: Final = list_of(private_key)
# Networks are rejected, because a proxy is recognised by its exact address.
ip_addresses: Final = list_of(parsed_string("an IP address (no network, no name)", _parse_ip_address, "IP addresses"))
origins: Final = list_of(parsed_string("an exact origin (scheme://host[:port])", _parse_origin, "origins"))
database_urls: Final[Kind[tuple[Secret, ...]]] = list_of(
    parsed_string(
        "postgresql://user:password@host:port/database (a comma is %2C)", _parse_database_url, "PostgreSQL URLs"
    )
)
