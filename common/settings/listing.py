"""Table of a program's settings: name, default, range, meaning, current value and its source."""

from typing import Final

import attrs

from common.settings.errors import SettingError
from common.settings.reader import Setting, Source, find, settings_of, value_of

_HIDDEN: Final = "<SECRET>"


@attrs.frozen(slots=True)
class Row:
    """One setting. `value` is None if it is not set and has no default. `problem` says why a value is invalid."""

    name: str
    default: str | None
    range: str
    meaning: str
    value: str | None
    source: str | None
    problem: str | None

    def as_json(self) -> dict[str, str | None]:
        return attrs.asdict(self)


def rows(cls: type, *sources: Source) -> list[Row]:
    """Return one row per setting, named as in the first source. Invalid values are reported instead of raised."""
    return [_row(each, sources) for each in settings_of(cls)]


def _row(setting: Setting, sources: tuple[Source, ...]) -> Row:
    default = None if setting.required else _shown(setting, setting.default)
    value, source, problem = default, None if setting.required else "default", None
    try:
        found = find(setting, *sources)
        if found is not None:
            value, source = _shown(setting, found[1]), found[0].label
            value_of(setting, *found)
        elif setting.required:
            problem = "is required"
    except SettingError as error:
        problem = error.problem
    return Row(sources[0].key(setting), default, setting.kind.range, setting.about, value, source, problem)


def _shown(setting: Setting, value: object) -> str | None:
    if value is None or value == ():
        return None
    if setting.secret:
        return _HIDDEN
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
