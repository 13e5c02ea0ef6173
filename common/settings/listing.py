"""List a program's settings with name, default, range, meaning, current value and source."""

import json
from collections.abc import Sequence
from typing import Final

import attrs

from common.settings.errors import SettingError
from common.settings.reader import Setting, Source, convert_value, find_setting, settings_of
from common.text_table import hanging_text

_HIDDEN_VALUE: Final = "<SECRET>"
_INDENT: Final = "    "
_MAX_SHOWN_LENGTH: Final = 60


@attrs.frozen(slots=True)
class SettingRow:
    """One setting. `value` is None for an unset setting without a default. `problem` explains an invalid value."""

    name: str
    default: str | None
    range: str
    meaning: str
    value: str | None
    source: str | None
    problem: str | None


def describe_settings(cls: type, *sources: Source) -> list[SettingRow]:
    """Return one row per setting, with the setting's name in the first source, usually the variable's name."""
    return [_describe_setting(each, sources) for each in settings_of(cls)]


def _describe_setting(setting: Setting, sources: tuple[Source, ...]) -> SettingRow:
    default = None if setting.required else _shown_value(setting.default)
    value, source, problem = default, None if default is None else "default", None
    try:
        found = find_setting(setting, *sources)
        if found is not None:
            value, source = _HIDDEN_VALUE if setting.secret else _shown_value(found[1]), found[0].label
            convert_value(setting, *found)
        elif setting.required:
            problem = "is required"
    except SettingError as error:
        problem = error.problem
    return SettingRow(sources[0].key(setting), default, setting.kind.range, setting.about, value, source, problem)


def _shown_value(value: object) -> str | None:
    if value is None or value == ():
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def settings_json(rows: Sequence[SettingRow]) -> str:
    return json.dumps([attrs.asdict(row) for row in rows], indent=2)


def settings_text(rows: Sequence[SettingRow], columns: int | None = None) -> str:
    """Return two lines per setting: its name, value and source, then its meaning, range and default."""
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        value = "unset" if row.value is None else _shortened(row.value)
        source = "" if row.source is None else f" ({row.source})"
        problem = "" if row.problem is None else f"  WRONG: {row.problem}"
        lines.append(hanging_text(f"{row.name:{width}}  ", f"{value}{source}{problem}", columns))
        facts = [row.meaning, row.range, f"default {row.default}" if row.default is not None else ""]
        lines.append(hanging_text(_INDENT, "; ".join(fact for fact in facts if fact), columns))
    return "\n".join(lines)


def _shortened(value: str) -> str:
    return value if len(value) <= _MAX_SHOWN_LENGTH else f"{value[:_MAX_SHOWN_LENGTH]}…"
