"""Kinds of values that a setting may have. Each reads the text of a variable and the value in a TOML file."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

import attrs

from common.refusal import Refused
from common.settings.errors import SettingError

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_MAX_SHOWN: Final = 60
_URL: Final = re.compile(r"https?://[^\s/?#]+(/[^\s#]*)?")


@attrs.frozen(slots=True)
class Kind(Generic[T]):
    """Kind of a value.

    `expected` completes the sentence "KEY must be …". `range` is its short form in the table of settings. A reader
    raises ValueError for a value that is not as expected. It raises `Refused` for another problem, with a text that
    continues a sentence after the key.
    """

    expected: str
    from_text: Callable[[str], T]
    from_toml: Callable[[object], T]
    range: str = ""


def parsed(expected: str, parse: Callable[[str], T], values: str = "") -> Kind[T]:
    """Return the kind of a value that is text in every source. `values` is its range in the table of settings."""

    def from_toml(value: object) -> T:
        if not isinstance(value, str) or not value:
            raise ValueError
        return parse(value)

    return Kind(expected, parse, from_toml, values)


def integer(low: int, high: int) -> Kind[int]:
    def checked(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return value

    def from_text(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise ValueError
        return checked(int(text))

    return Kind(f"an integer in {low}..{high}", from_text, checked, f"{low}..{high}")


def number(low: float, high: float) -> Kind[float]:
    def checked(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return float(value)

    def from_text(text: str) -> float:
        if not _NUMBER.fullmatch(text):
            raise ValueError
        return checked(float(text))

    return Kind(f"a number in {low:g}..{high:g}", from_text, checked, f"{low:g}..{high:g}")


def _flag_of_text(text: str) -> bool:
    if text not in ("1", "0", "true", "false"):
        raise ValueError
    return text in ("1", "true")


def _flag_of_toml(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def choice(*choices: Choice) -> Kind[Choice]:
    def parse(text: str) -> Choice:
        for each in choices:
            if text == each:
                return each
        raise ValueError

    return parsed(f"one of {', '.join(choices)}", parse, ", ".join(choices))


def _absolute_path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ValueError
    return path


def _http_url(text: str) -> str:
    parts = urlsplit(text)  # raises ValueError for a wrong host, and `port` for a wrong port
    if not _URL.fullmatch(text) or not parts.hostname or parts.port == 0:
        raise ValueError
    return text.rstrip("/")


def listed(kind: Kind[T], at_least: int = 0) -> Kind[tuple[T, ...]]:
    """Return the kind of a list: comma-separated in a variable, an array in a TOML file."""

    def counted(values: tuple[T, ...]) -> tuple[T, ...]:
        if len(values) < at_least:
            raise ValueError
        return values

    def from_text(text: str) -> tuple[T, ...]:
        return counted(tuple(kind.from_text(part.strip()) for part in text.split(",")))

    def from_toml(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError
        return counted(tuple(read_value(kind, each, n) for n, each in enumerate(value)))

    expected = f"a list, each {kind.expected}" + (f" (at least {at_least})" if at_least else "")
    return Kind(expected, from_text, from_toml, f"list of {kind.range}" if kind.range else "list")


def mapping(kind: Kind[T]) -> Kind[dict[str, T]]:
    """Return the kind of a TOML table with keys of the operator's choice."""

    def from_text(text: str) -> dict[str, T]:
        raise ValueError

    def from_toml(value: object) -> dict[str, T]:
        if not isinstance(value, dict):
            raise ValueError
        return {key: read_value(kind, each, key) for key, each in value.items()}

    return Kind(f"a table, each value {kind.expected}", from_text, from_toml, "table")


def read_value(kind: Kind[T], value: object, key: str | int, *, secret: bool = False) -> T:
    """Read a TOML value at `key`. Raise `SettingError`, which shows the value unless it is secret."""
    return _with_key(lambda: kind.from_toml(value), kind.expected, value, key, secret)


def read_text(kind: Kind[T], value: str, key: str, *, secret: bool = False) -> T:
    """Read the text of a variable or credential like `read_value`."""
    return _with_key(lambda: kind.from_text(value), kind.expected, value, key, secret)


def _with_key(read: Callable[[], T], expected: str, value: object, key: str | int, secret: bool) -> T:
    try:
        return read()
    except SettingError as error:
        raise error.below(key) from None
    except Refused as error:
        raise SettingError.at((key, error.param) if error.param else (key,), error.message) from None
    except ValueError:
        shown = "" if secret else f", not {_short(value)}"
        raise SettingError.at((key,), f"must be {expected}{shown}") from None


def _short(value: object) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "an array"
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    return written if len(written) <= _MAX_SHOWN else f"{written[:_MAX_SHOWN]}…"


text: Final = parsed("a string that is not empty", str)
boolean: Final = Kind("1, 0, true or false", _flag_of_text, _flag_of_toml, "1, 0, true, false")
path: Final = parsed("an absolute path", _absolute_path, "absolute path")
url: Final = parsed("an http:// or https:// address", _http_url, "http(s):// address")
