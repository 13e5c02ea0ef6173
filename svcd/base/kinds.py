"""Parsers for the values of settings in svcd.toml that `common.settings.kinds` does not have."""

import re
from collections.abc import Hashable
from typing import Final, NoReturn, TypeVar

import httpx

from common.refusal import Refused
from common.scalars import read_uint
from common.settings.kinds import Kind, list_of, parsed_string
from svcd.base.json_path import JsonPath

T = TypeVar("T", bound=Hashable)

_URL_PATTERN: Final = re.compile(r"https?://[^\s/?#]+(/[^\s#]*)?")
_PORT_PATTERN: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_HEADER_NAME_PATTERN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE_PATTERN: Final = re.compile(r"[\x20-\x7e]*")


def _parse_url(text: str) -> str:
    """Return the URL if httpx can parse it. Raise ValueError otherwise."""
    try:
        address = httpx.URL(text)
    except httpx.InvalidURL:
        raise ValueError from None
    if not _URL_PATTERN.fullmatch(text) or not address.host or not (address.port is None or 0 < address.port < 65_536):
        raise ValueError
    return text


def _parse_https_url(text: str) -> str:
    if not text.startswith("https://"):
        raise ValueError
    return _parse_url(text)


def _parse_host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not _PORT_PATTERN.fullmatch(port) or not 0 < int(port) < 65_536:
        raise ValueError
    return host.removeprefix("[").removesuffix("]"), int(port)


def _parse_base_units(text: str) -> int:
    try:
        return read_uint(text, 128, "it")
    except Refused:
        raise ValueError from None


def _parse_single_path(text: str) -> JsonPath:
    path = JsonPath.parse(text)
    if not path.is_single:
        raise Refused("must select a single value, so it must not contain [*]")
    return path


def _read_string_table(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError
    return dict(value)


def _read_headers(value: object) -> dict[str, str]:
    headers = _read_string_table(value)
    for name, text in headers.items():
        if not _HEADER_NAME_PATTERN.fullmatch(name) or not _HEADER_VALUE_PATTERN.fullmatch(text):
            raise Refused("must be an HTTP header of printable ASCII characters", name)
    return headers


def _read_json_table(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError
    return dict(value)


def _reject_text(text: str) -> NoReturn:
    raise ValueError


def unordered_list(kind: Kind[T], at_least: int = 0) -> Kind[frozenset[T]]:
    """Return the kind of a setting that is a list in svcd.toml and is read as a set."""
    ordered = list_of(kind, at_least)
    return Kind(
        ordered.expected,
        lambda text: frozenset(ordered.from_text(text)),
        lambda value: frozenset(ordered.from_toml(value)),
    )


http_url: Final = parsed_string("an http:// or https:// address", _parse_url)
https_url: Final = parsed_string("an https:// address", _parse_https_url)
host_and_port: Final = parsed_string("an address and a port, such as 0.0.0.0:9404", _parse_host_and_port)
# Amounts in base units are TOML strings, because an amount may exceed the 64 bits of a TOML integer.
base_units: Final = parsed_string('a whole number in a string, such as "1000000"', _parse_base_units)
json_path: Final = parsed_string("a path into JSON, such as data[0].id", JsonPath.parse)
single_value_path: Final = parsed_string("a path to one value in JSON, such as data[0].id", _parse_single_path)
string_table: Final = Kind("a table of strings", _reject_text, _read_string_table)
header_table: Final = Kind("a table of strings", _reject_text, _read_headers)
json_table: Final = Kind("a table", _reject_text, _read_json_table)
