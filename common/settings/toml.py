"""Read settings from TOML files, including nested tables."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from common.settings.errors import SettingError
from common.settings.kinds import Kind, read_value
from common.settings.reader import TomlTable, read_from_sources, suggestion

T = TypeVar("T")

_MAX_FILE_BYTES: Final = 1 << 20


def read_settings_file(path: Path, cls: type[T]) -> T:
    """Read the settings in a TOML file.

    Raise `SettingError` if the file cannot be read, or if a setting is missing, unknown or invalid.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingError.at((), f"cannot be read: {error.strerror}", path) from None
    if len(raw) > _MAX_FILE_BYTES:
        raise SettingError.at((), f"must be at most {_MAX_FILE_BYTES:,} bytes long", path)
    return read_from_sources(cls, TomlTable(parse_toml(raw, path), path))


def parse_toml(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the values in a TOML file. Raise `SettingError` with the line of a syntax error."""
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except ValueError as error:  # invalid TOML or UTF-8, or an integer with thousands of digits
        raise SettingError.at((), f"is not valid TOML: {error}", path) from None
    except RecursionError:
        raise SettingError.at((), "has arrays or tables nested too deeply", path) from None


def table(cls: type[T]) -> Kind[T]:
    """Return the kind of a TOML table that holds the settings of an attrs class."""

    def from_toml(value: object) -> T:
        return read_from_sources(cls, TomlTable(_require_table(value)))

    return Kind("a table", _reject_text, from_toml, "table")


def tables(cls: type[T], at_least: int = 0) -> Kind[tuple[T, ...]]:
    """Return the kind of an array of TOML tables, such as `[[model]]`."""
    item_kind = table(cls)

    def from_toml(value: object) -> tuple[T, ...]:
        if not isinstance(value, list) or len(value) < at_least:
            raise ValueError
        return tuple(read_value(item_kind, each, n) for n, each in enumerate(value))

    minimum = f" (at least {at_least})" if at_least else ""
    return Kind(f"an array of tables{minimum}", _reject_text, from_toml, "tables")


def variants(key: str, classes: Mapping[str, type[T]], default: str | None = None) -> Kind[T]:
    """Return the kind of a table in which `key` selects the class of the other settings.

    A table without `key` gets the class of `default`. Without `default`, `key` is required.
    """
    names = ", ".join(classes)

    def from_toml(value: object) -> T:
        values = _require_table(value)
        name = values.pop(key, default)
        if name is None:
            raise SettingError.at((key,), f"is required (one of {names})")
        if not isinstance(name, str) or name not in classes:
            raise SettingError.at((key,), f"must be one of {names}, not {name!r}{suggestion(str(name), classes)}")
        return read_from_sources(classes[name], TomlTable(values))

    return Kind(f"a table with {key} = one of {names}", _reject_text, from_toml, "table")


def _require_table(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError
    return dict(value)


def _reject_text(text: str) -> NoReturn:
    """Reject a value from an environment variable, because a variable cannot have a table."""
    raise ValueError
