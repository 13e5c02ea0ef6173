"""Declare settings, and read them from environment variables, credentials and TOML tables."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, overload

import attrs

from common.refusal import Refused
from common.settings.errors import SettingError
from common.settings.kinds import Kind, read_text, read_value

T = TypeVar("T")

_REQUIRED: Final = object()
_VARIABLE_PATTERN: Final = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_MIN_SIMILARITY: Final = 0.7  # between a misspelt key and the setting that was probably meant
_MIN_VARIABLE_SIMILARITY: Final = 0.84  # higher, because the variable may belong to another program


@attrs.frozen(slots=True)
class Setting:
    """Declared setting. `name` is its key in a TOML file. Its variable is a prefix followed by `name` in upper case."""

    field: str
    name: str
    kind: Kind[Any]
    about: str
    default: object
    secret: bool

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


@overload
def setting(kind: Kind[T], about: str = "", *, name: str | None = None, secret: bool = False) -> T: ...
@overload
def setting(kind: Kind[T], about: str, default: None, *, name: str | None = None, secret: bool = False) -> T | None: ...
@overload
def setting(kind: Kind[T], about: str, default: T, *, name: str | None = None, secret: bool = False) -> T: ...


def setting(
    kind: Kind[Any], about: str = "", default: Any = _REQUIRED, *, name: str | None = None, secret: bool = False
) -> Any:
    """Declare a field of an attrs class as a setting. Without a default, the setting is required.

    `name` overrides the field's name. A secret is never shown, and may come from a credential file.
    """
    declared = {"kind": kind, "about": about, "default": default, "name": name, "secret": secret}
    initial = attrs.NOTHING if default is _REQUIRED else default
    return attrs.field(default=initial, repr=not secret, metadata={"setting": declared})


def settings_of(cls: type) -> list[Setting]:
    """Return the settings of an attrs class in the order of their declaration."""
    found = []
    for field in attrs.fields(cls):
        if (declared := field.metadata.get("setting")) is not None:
            found.append(Setting(field=field.name, **{**declared, "name": declared["name"] or field.name}))
    return found


class Source(Protocol):
    """Source of settings: environment, credentials or a TOML table."""

    @property
    def file(self) -> Path | None:
        """File or folder that error messages name, or None."""

    @property
    def label(self) -> str:
        """Name of the source in the table of settings."""

    def key(self, setting: Setting) -> str:
        """Return the setting's name as this source writes it."""

    def find(self, setting: Setting) -> object | None:
        """Return the raw value, or None if this source does not set the setting."""

    def read(self, setting: Setting, value: object) -> Any:
        """Convert a raw value to the setting's kind. Raise `SettingError` for an invalid value."""

    def check(self, settings: Sequence[Setting]) -> None:
        """Raise `SettingError` if the source has a key that is not one of these settings."""


@attrs.frozen(slots=True)
class Environment:
    """Environment variables: the setting's name in upper case after `prefix`. An empty variable counts as unset."""

    variables: Mapping[str, str]
    prefix: str = ""
    file: Path | None = None

    @property
    def label(self) -> str:
        return "environment"

    def key(self, setting: Setting) -> str:
        return f"{self.prefix}{setting.name.upper()}"

    def find(self, setting: Setting) -> object | None:
        return self.variables.get(self.key(setting)) or None

    def read(self, setting: Setting, value: object) -> Any:
        return read_text(setting.kind, str(value), self.key(setting), secret=setting.secret)

    def check(self, settings: Sequence[Setting]) -> None:
        """Accept every variable, because most belong to other programs. `unknown_variables` finds misspelt settings."""


@attrs.frozen(slots=True)
class Credentials:
    """Folder of systemd's credentials (CREDENTIALS_DIRECTORY), or None. Each file is named after a secret setting."""

    file: Path | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Credentials":
        folder = environ.get("CREDENTIALS_DIRECTORY")
        return cls(Path(folder) if folder else None)

    @property
    def label(self) -> str:
        return "credential"

    def key(self, setting: Setting) -> str:
        return setting.name

    def find(self, setting: Setting) -> object | None:
        if self.file is None or not setting.secret:
            return None
        try:
            return (self.file / setting.name).read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingError.at((setting.name,), f"cannot be read: {error.strerror}", self.file) from None
        except UnicodeDecodeError:
            raise SettingError.at((setting.name,), "must be UTF-8 text", self.file) from None

    def read(self, setting: Setting, value: object) -> Any:
        return read_text(setting.kind, str(value), self.key(setting), secret=setting.secret)

    def check(self, settings: Sequence[Setting]) -> None:
        """Accept every file, because a unit may load credentials for other programs."""


@attrs.frozen(slots=True)
class TomlTable:
    """Table of a TOML file. The table must not have unknown keys."""

    values: Mapping[str, object]
    file: Path | None = None

    @property
    def label(self) -> str:
        return "file" if self.file is None else str(self.file)

    def key(self, setting: Setting) -> str:
        return setting.name

    def find(self, setting: Setting) -> object | None:
        return self.values.get(setting.name)

    def read(self, setting: Setting, value: object) -> Any:
        return read_value(setting.kind, value, setting.name, secret=setting.secret)

    def check(self, settings: Sequence[Setting]) -> None:
        known = [setting.name for setting in settings]
        for key in self.values:
            if key not in known:
                raise SettingError.at((key,), f"is not a setting{suggestion(key, known)}")


def read_from_sources(cls: type[T], *sources: Source) -> T:
    """Read an attrs class of settings. An earlier source overrides a later one.

    Raise `SettingError` if a setting is missing, unknown or invalid.

    The class may check its fields against each other in `__attrs_post_init__`. For a wrong combination, the class
    raises `Refused` with the name of a field as `param`, and a message that completes a sentence after that name.
    """
    settings = settings_of(cls)
    for source in sources:
        with _errors_with_file(source):
            source.check(settings)
    values = {}
    for each in settings:
        found = find_setting(each, *sources)
        if found is not None:
            values[each.field] = convert_value(each, *found)
        elif each.required:
            about = f" ({each.about})" if each.about else ""
            raise SettingError.at((sources[0].key(each),), f"is required{about}", sources[0].file)
    with _errors_with_file(sources[0]):
        try:
            return cls(**values)
        except SettingError:
            raise
        except Refused as error:
            keys = {each.field: sources[0].key(each) for each in settings}
            path = (keys.get(error.param, error.param),) if error.param else ()
            raise SettingError.at(path, error.message) from None


def find_setting(setting: Setting, *sources: Source) -> tuple[Source, object] | None:
    """Return the first source that has the setting, and the raw value. Return None if no source has the setting."""
    for source in sources:
        value = source.find(setting)
        if value is not None:
            return source, value
    return None


def convert_value(setting: Setting, source: Source, given: object) -> Any:
    """Convert a raw value to the setting's kind. Raise `SettingError` for an invalid value."""
    with _errors_with_file(source):
        return source.read(setting, given)


@contextmanager
def _errors_with_file(source: Source) -> Iterator[None]:
    try:
        yield
    except SettingError as error:
        raise (error if source.file is None else error.in_file(source.file)) from None


def most_similar_name(name: str, known: Collection[str], similarity: float = _MIN_SIMILARITY) -> str | None:
    """Return the known name that is most similar to the misspelt `name`, or None."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=similarity)
    return found[0] if found else None


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a hint with the most similar known name, or an empty string.

    >>> suggestion("slot", ["slots", "name"])
    ' (did you mean slots?)'
    """
    similar = most_similar_name(name, known)
    return f" (did you mean {similar}?)" if similar else ""


def unknown_variables(
    environ: Mapping[str, str], known: Collection[str], foreign: Collection[str] = ()
) -> dict[str, str | None]:
    """Return the variables that look like settings but are not, each with the most similar setting or None.

    A variable looks like a setting if its first word is the first word of a setting, or if its name is similar to the
    name of a setting. `foreign` lists variables of other programs, and first words, such as `SENTRY_`, that other
    programs also use.
    """
    first_words = {
        name.partition("_")[0] for name in known if "_" in name and f"{name.partition('_')[0]}_" not in foreign
    }
    unknown = {}
    for name in sorted(name for name, value in environ.items() if value):
        if name in known or name in foreign or not _VARIABLE_PATTERN.fullmatch(name):
            continue
        similar = most_similar_name(name, known, _MIN_VARIABLE_SIMILARITY)
        first_word, _, rest = name.partition("_")
        if similar or (rest and first_word in first_words):
            unknown[name] = similar
    return unknown
