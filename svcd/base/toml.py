"""Typed reading of one table of the configuration; a mistake is `Refused` and names its key in `param`."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import attrs
import httpx

from common.refusal import Refused

T = TypeVar("T")

_URL: Final = re.compile(r"https?://[^\s/?#]+(/[^\s#]*)?")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")


@attrs.define(slots=True)
class Table:
    """Each key is taken once; `done` refuses what nobody took, so that a misspelt key is never silently ignored."""

    entries: Mapping[str, object]
    _taken: set[str] = attrs.field(factory=set)

    def has(self, key: str) -> bool:
        return key in self.entries

    def text(self, key: str, default: str | None = None) -> str:
        value = self.take(key, default)
        if not isinstance(value, str) or not value:
            raise Refused(f"{key} must be a string that is not empty", key)
        return value

    def url(self, key: str, default: str | None = None) -> str:
        value = self.text(key, default)
        if not _URL.fullmatch(value) or not _is_address(value):
            raise Refused(f"{key} must be an http:// or https:// address", key)
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise Refused(f"{key} must be one of {', '.join(choices)}", key)
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.take(key, default)
        if type(value) is not int or not low <= value <= high:
            raise Refused(f"{key} must be an integer in {low}..{high}", key)
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.take(key, default)
        # NaN is neither below nor above anything, and is refused by the comparison.
        if type(value) not in (int, float) or not low <= float(str(value)) <= high:
            raise Refused(f"{key} must be a number in {low:g}..{high:g}", key)
        return float(str(value))

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise Refused(f"{key} must be true or false", key)
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self.take(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise Refused(f"{key} must be a list of strings that are not empty", key)
        return tuple(value)

    def text_map(self, key: str) -> dict[str, str]:
        """A table of strings; absent is empty."""
        value = self.take(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise Refused(f"{key} must be a table of strings", key)
        return dict(value)

    def object_map(self, key: str) -> dict[str, object]:
        """A table of anything; absent is empty."""
        value = self.take(key, {})
        if not isinstance(value, Mapping):
            raise Refused(f"{key} must be a table", key)
        return dict(value)

    def headers(self, key: str) -> dict[str, str]:
        headers = self.text_map(key)
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise Refused(f"{key}.{name} is not an HTTP header", f"{key}.{name}")
        return headers

    def path(self, key: str) -> Path:
        path = Path(self.text(key))
        if not path.is_absolute():
            raise Refused(f"{key} must be an absolute path", key)
        return path

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        """What `read` makes of the key, or None where the table has no such key."""
        return read(key) if self.has(key) else None

    def done(self) -> None:
        for key in sorted(self.entries.keys() - self._taken):
            raise Refused(f"{key} is not a key of this table", key)

    def take(self, key: str, default: object = None) -> object:
        """Whatever stands there, for a reader of its own."""
        self._taken.add(key)
        value = self.entries.get(key, default)
        if value is None:
            raise Refused(f"{key} is missing", key)
        return value


def _is_address(value: str) -> bool:
    """As requests will read it: a mistake is told now, and not by the first request."""
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        return False
    return bool(url.host) and (url.port is None or 0 < url.port < 65_536)
