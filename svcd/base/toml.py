"""Read TOML into typed structs. An error names the file, the key and the expected value."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeVar, runtime_checkable

import attrs
import httpx
import msgspec
from msgspec import inspect

from common.daemon.process import Fatal
from common.refusal import Refused

KeyPath = tuple[str | int, ...]
"""Place of a value: `("model", 1, "slots")`. Elements of arrays are counted from 0."""

T = TypeVar("T")

_URL: Final = re.compile(r"https?://[^\s/?#]+(/[^\s#]*)?")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e]*")

Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = tuple[Text, ...]


class TomlTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file. `__post_init__` may raise `Refused`, whose `param` is one of the table's keys."""


@runtime_checkable
class _Readable(Protocol):
    @classmethod
    def from_toml(cls, value: object) -> object: ...


class Url(str):
    """An http:// or https:// address, validated as requests will parse it."""

    __slots__ = ()

    @classmethod
    def from_toml(cls, value: object) -> "Url":
        if not isinstance(value, str) or not _URL.fullmatch(value) or not _is_address(value):
            raise Refused("must be an http:// or https:// address")
        return cls(value)


class HiddenTexts(dict[str, str]):
    """Table of strings that may be secrets. Its `repr` hides them."""

    @classmethod
    def from_toml(cls, value: object) -> "HiddenTexts":
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise Refused("must be a table of strings")
        return cls(value)

    def __repr__(self) -> str:
        return "<SECRET>"


class Headers(HiddenTexts):
    """HTTP headers, which may carry keys."""

    @classmethod
    def from_toml(cls, value: object) -> "Headers":
        headers = cls(super().from_toml(value))
        for name, text in headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(text):
                raise Refused("must be an HTTP header of printable ASCII characters", name)
        return headers


@attrs.frozen(slots=True)
class Mistake(Refused):
    """Raised for an invalid value at `path`, which `param` writes with dots."""

    path: KeyPath = ()

    @classmethod
    def at(cls, path: KeyPath, message: str) -> "Mistake":
        return cls(message, param=dotted(path), path=path)

    def below(self, path: KeyPath) -> "Mistake":
        """Return the mistake with `path` prepended."""
        return Mistake.at((*path, *self.path), self.message)


def dotted(path: KeyPath) -> str:
    """Return the path as messages write it: `model[1].slots`."""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}" if written else part
    return written


def read_file(path: Path, read: Callable[[Mapping[str, object]], T]) -> T:
    """Apply `read` to the file's values. Raise Fatal, as one line with file and key, when anything is wrong."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no TOML, no UTF-8, or an integer of thousands of digits
        raise Fatal(f"{path}: {error}") from None
    except RecursionError:
        raise Fatal(f"{path}: its arrays or tables nest too deep") from None
    except OSError as error:
        raise Fatal(f"{path}: {error.strerror}") from None
    try:
        return read(values)
    except Mistake as mistake:
        key = _key_of(mistake.path)
        problem = mistake.message.removeprefix(f"{key} ")
        separator = " " if problem != mistake.message else ": "
        raise Fatal(f"{path}: {mistake.param}{separator}{problem}") from None


def read_table(values: Mapping[str, object], kind: type[T]) -> T:
    """Return the values as `kind`. Raise `Mistake`."""
    try:
        return msgspec.convert(values, kind, dec_hook=_read_custom)
    except msgspec.ValidationError as error:
        raise _mistake(error, values, kind) from None


def _read_custom(kind: type, value: object) -> object:
    if kind is Path:
        if not isinstance(value, str) or not Path(value).is_absolute():
            raise Refused("must be an absolute path")
        return Path(value)
    if not isinstance(kind, _Readable):
        raise NotImplementedError(kind)
    return kind.from_toml(value)


def _is_address(value: str) -> bool:
    try:
        url = httpx.URL(value)
    except httpx.InvalidURL:
        return False
    return bool(url.host) and (url.port is None or 0 < url.port < 65_536)


_SAID: Final = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")  # the place inside a free table is `[...]`, and left out


def _mistake(error: msgspec.ValidationError, values: Mapping[str, object], kind: type) -> Mistake:
    said = _SAID.fullmatch(str(error))
    message, place = (said[1], said[2] or "") if said else (str(error), "")
    path: KeyPath = tuple(int(index) if index else name for name, index in _STEP.findall(place))
    if isinstance(error.__cause__, Refused):
        refused = error.__cause__
        path = (*path, refused.param) if refused.param else path
        bare = refused.message.startswith(("must ", "needs ", "does not "))
        return Mistake.at(path, f"{_key_of(path)} {refused.message}" if bare else refused.message)
    if field := _FIELD.fullmatch(message):
        problem = "is missing" if field[1].startswith("missing") else "is not a key of this table"
        return Mistake.at((*path, field[2]), f"{field[2]} {problem}")
    return Mistake.at(path, f"{_key_of(path)} must be {_described(_type_at(path, values, kind))}")


def _key_of(path: KeyPath) -> str:
    return next((part for part in reversed(path) if isinstance(part, str)), "the file")


def _type_at(path: KeyPath, value: object, kind: type) -> inspect.Type:
    """Return the declared type of a place. The values choose between several possible structs."""
    found: inspect.Type = inspect.type_info(kind)
    for part in path:
        found = _chosen(found, value)
        if isinstance(part, int) and isinstance(found, inspect.CollectionType):
            found, value = found.item_type, value[part] if isinstance(value, list) else None
        elif isinstance(found, inspect.StructType):
            field = next((field for field in found.fields if field.encode_name == part), None)
            if field is None:
                return found
            found, value = field.type, value.get(part) if isinstance(value, Mapping) else None
    return found


def _chosen(found: inspect.Type, value: object) -> inspect.Type:
    if not isinstance(found, inspect.UnionType):
        return found
    kinds = [kind for kind in found.types if not isinstance(kind, inspect.NoneType)]
    for kind in kinds:
        if isinstance(kind, inspect.StructType) and isinstance(value, Mapping) and value.get("kind") == kind.tag:
            return kind
    return kinds[0] if len(kinds) == 1 else found


def _described(kind: inspect.Type) -> str:
    match _chosen(kind, None):
        case inspect.IntType(ge=low, le=high):
            return f"an integer in {low}..{high}"
        case inspect.FloatType(ge=low, le=high):
            return f"a number in {low:g}..{high:g}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return f"one of {', '.join(map(str, values))}"
        case inspect.UnionType(types=types):
            return f"one of {', '.join(str(kind.tag) for kind in types if isinstance(kind, inspect.StructType))}"
        case inspect.CollectionType(item_type=inspect.StructType()):
            return "an array of tables, with at least one"
        case inspect.CollectionType(item_type=inspect.LiteralType(values=values)):
            return f"a list out of {', '.join(map(str, values))}"
        case inspect.CollectionType(min_length=1):
            return "a list of strings, with at least one"
        case inspect.CollectionType():
            return "a list of strings that are not empty"
        case inspect.DictType(value_type=inspect.StrType()):
            return "a table of strings"
        case inspect.DictType() | inspect.StructType():
            return "a table"
        case _:
            return "a string that is not empty"
