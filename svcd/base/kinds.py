"""Kinds of values in svcd.toml, beyond those of `common.settings.kinds`."""

import re
from collections.abc import Hashable
from typing import Final, NoReturn, TypeVar

import httpx

from common.refusal import Refused
from common.scalars import read_uint
from common.settings.kinds import Kind, listed, parsed
from svcd.base.json_path import JsonPath

T = TypeVar("T", bound=Hashable)

_URL: Final = re.compile(r"https?://[^\s/?#]+(/[^\s#]*)?")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")


def _url(text: str) -> str:
    """Validate an address as requests will parse it."""
    try:
        address = httpx.URL(text)
    except httpx.InvalidURL:
        raise ValueError from None
    if not _URL.fullmatch(text) or not address.host or not (address.port is None or 0 < address.port < 65_536):
        raise ValueError
    return text


def _base_units(text: str) -> int:
    try:
        return read_uint(text, 128, "it")
    except Refused:
        raise ValueError from None


def _single_path(text: str) -> JsonPath:
    path = JsonPath.parse(text)
    if not path.is_single:
        raise Refused("must name one place, without [*]")
    return path


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError
    return dict(value)


def _headers(value: object) -> dict[str, str]:
    headers = _texts(value)
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(text):
            raise Refused("must be an HTTP header of printable ASCII characters", name)
    return headers


def _table(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError
    return dict(value)


def _no_text(text: str) -> NoReturn:
    raise ValueError


def unordered(kind: Kind[T], at_least: int = 0) -> Kind[frozenset[T]]:
    """Return the kind of a list without a meaningful order."""
    one = listed(kind, at_least)
    return Kind(
        one.expected, lambda text: frozenset(one.from_text(text)), lambda value: frozenset(one.from_toml(value))
    )


http_url: Final = parsed("an http:// or https:// address", _url)
base_units: Final = parsed("a decimal number in a string", _base_units)  # may exceed the 64 bits of TOML's integers
json_path: Final = parsed("a path into JSON, such as data[0].id", JsonPath.parse)
single_path: Final = parsed("a path into JSON, such as data[0].id", _single_path)
texts: Final = Kind("a table of strings", _no_text, _texts)
headers: Final = Kind("a table of strings", _no_text, _headers)
json_table: Final = Kind("a table", _no_text, _table)
