"""Types of settings' values (kinds). A kind parses the text of a variable and the value in a TOML file."""

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

_INTEGER_PATTERN: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)
_NUMBER_PATTERN: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_MAX_SHOWN_LENGTH: Final = 60
_URL_PATTERN: Final = re.compile(r"https?://[^\s/?#]+(/[^\s#]*)?")


@attrs.frozen(slots=True)
class Kind(Generic[T]):
    """Type of a setting's value, with its parsers.

    `expected` completes the sentence "KEY must be …". `range` is a shorter text for the settings table.
    For an invalid value, `from_text` and `from_toml` raise ValueError if `expected` explains the problem. Otherwise,
    they raise `Refused` with a message that completes a sentence after the key.
    """

    expected: str
    from_text: Callable[[str], T]
    from_toml: Callable[[object], T]
    range: str = ""


def parsed_string(expected: str, parse: Callable[[str], T], values: str = "") -> Kind[T]:
    """Return a kind for values that are strings in all sources. `values` is the kind's `range`."""

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
        if not _INTEGER_PATTERN.fullmatch(text):
            raise ValueError
        return checked(int(text))

    return Kind(f"an integer in {low}..{high}", from_text, checked, f"{low}..{high}")


def number(low: float, high: float) -> Kind[float]:
    def checked(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError
        return float(value)

    def from_text(text: str) -> float:
        if not _NUMBER_PATTERN.fullmatch(text):
            raise ValueError
        return checked(float(text))

    return Kind(f"a number in {low:g}..{high:g}", from_text, checked, f"{low:g}..{high:g}")


def _flag_from_text(text: str) -> bool:
    if text not in ("1", "0", "true", "false"):
        raise ValueError
    return text in ("1", "true")


def _flag_from_toml(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def choice(*choices: Choice) -> Kind[Choice]:
    def parse(text: str) -> Choice:
        for each in choices:
            if text == each:
                return each
        raise ValueError

    return parsed_string(f"one of {', '.join(choices)}", parse, ", ".join(choices))


def _parse_absolute_path(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise ValueError
    return path


def _parse_http_url(text: str) -> str:
    parts = urlsplit(text)  # raises ValueError for a malformed host, as `parts.port` does for a malformed port
    if not _URL_PATTERN.fullmatch(text) or not parts.hostname or parts.port == 0:
        raise ValueError
    return text.rstrip("/")


def list_of(kind: Kind[T], at_least: int = 0) -> Kind[tuple[T, ...]]:
    """Return the kind of a list: comma-separated in a variable, an array in a TOML file."""

    def require_minimum(values: tuple[T, ...]) -> tuple[T, ...]:
        if len(values) < at_least:
            raise ValueError
        return values

    def from_text(text: str) -> tuple[T, ...]:
        return require_minimum(tuple(kind.from_text(part.strip()) for part in text.split(",")))

    def from_toml(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError
        return require_minimum(tuple(read_value(kind, each, n) for n, each in enumerate(value)))

    expected = f"a list, each {kind.expected}" + (f" (at least {at_least})" if at_least else "")
    return Kind(expected, from_text, from_toml, f"list of {kind.range}" if kind.range else "list")


def table_of(kind: Kind[T]) -> Kind[dict[str, T]]:
    """Return the kind of a TOML table with keys that the operator chooses."""

    def from_text(text: str) -> dict[str, T]:
        raise ValueError

    def from_toml(value: object) -> dict[str, T]:
        if not isinstance(value, dict):
            raise ValueError
        return {key: read_value(kind, each, key) for key, each in value.items()}

    return Kind(f"a table, each value {kind.expected}", from_text, from_toml, "table")


def read_value(kind: Kind[T], value: object, key: str | int, *, secret: bool = False) -> T:
    """Read a TOML value at `key`. Raise `SettingError` for an invalid value. The error shows no secrets."""
    return _read_with_key(lambda: kind.from_toml(value), kind.expected, value, key, secret)


def read_text(kind: Kind[T], value: str, key: str, *, secret: bool = False) -> T:
    """Read the text of a variable or credential. Raise `SettingError` like `read_value`."""
    return _read_with_key(lambda: kind.from_text(value), kind.expected, value, key, secret)


def _read_with_key(read: Callable[[], T], expected: str, value: object, key: str | int, secret: bool) -> T:
    try:
        return read()
    except SettingError as error:
        raise error.with_prefix(key) from None
    except Refused as error:
        raise SettingError.at((key, error.param) if error.param else (key,), error.message) from None
    except ValueError:
        shown = "" if secret else f", not {_short_text(value)}"
        raise SettingError.at((key,), f"must be {expected}{shown}") from None


def _short_text(value: object) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "an array"
    written = str(value).lower() if isinstance(value, bool) else repr(value)
    return written if len(written) <= _MAX_SHOWN_LENGTH else f"{written[:_MAX_SHOWN_LENGTH]}…"


text: Final = parsed_string("a string that is not empty", str)
boolean: Final = Kind("1, 0, true or false", _flag_from_text, _flag_from_toml, "1, 0, true, false")
path: Final = parsed_string("an absolute path", _parse_absolute_path, "absolute path")
url: Final = parsed_string("an http:// or https:// address", _parse_http_url, "http(s):// address")
