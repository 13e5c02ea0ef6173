"""Table of a program's settings: name, default, range, meaning, current value and its source."""

import json
from collections.abc import Sequence
from typing import Final

import attrs

from common.settings.errors import SettingError
from common.settings.reader import Setting, Source, find, settings_of, value_of
from common.text_table import hanging

_HIDDEN: Final = "<SECRET>"
_INDENT: Final = "    "
_MAX_SHOWN: Final = 60


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


def rows(cls: type, *sources: Source) -> list[Row]:
    """Return one row per setting, named as the first source spells it. A row's `problem` reports an invalid value."""
    return [_row(each, sources) for each in settings_of(cls)]


def _row(setting: Setting, sources: tuple[Source, ...]) -> Row:
    default = None if setting.required else _shown(setting.default)
    value, source, problem = default, None if default is None else "default", None
    try:
        found = find(setting, *sources)
        if found is not None:
            value, source = _HIDDEN if setting.secret else _shown(found[1]), found[0].label
            value_of(setting, *found)
        elif setting.required:
            problem = "is required"
    except SettingError as error:
        problem = error.problem
    return Row(sources[0].key(setting), default, setting.kind.range, setting.about, value, source, problem)


def _shown(value: object) -> str | None:
    if value is None or value == ():
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


def settings_json(rows: Sequence[Row]) -> str:
    return json.dumps([attrs.asdict(row) for row in rows], indent=2)


def settings_text(rows: Sequence[Row], columns: int | None = None) -> str:
    """Return two lines per setting: its name, value and source, then its meaning, range and default."""
    width = max(len(row.name) for row in rows)
    lines = []
    for row in rows:
        value = "unset" if row.value is None else _shortened(row.value)
        origin = "" if row.source is None else f" ({row.source})"
        problem = "" if row.problem is None else f"  WRONG: {row.problem}"
        lines.append(hanging(f"{row.name:{width}}  ", f"{value}{origin}{problem}", columns))
        facts = [row.meaning, row.range, f"default {row.default}" if row.default is not None else ""]
        lines.append(hanging(_INDENT, "; ".join(fact for fact in facts if fact), columns))
    return "\n".join(lines)


def _shortened(value: str) -> str:
    return value if len(value) <= _MAX_SHOWN else f"{value[:_MAX_SHOWN]}…"
