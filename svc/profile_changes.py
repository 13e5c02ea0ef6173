"""Change one setting in the profiles file, without changing the file's comments, order or spacing."""

import re
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.items import AbstractTable

from common.refusal import Refused
from common.settings.kinds import read_text
from common.settings.reader import Setting, read_from_sources, settings_of, suggestion
from svc.profiles import CONFIG_VARIABLE, PROFILE_VARIABLE, parse_profiles, profiles_file
from svc.variables import ProfileTable, Variables

_PROFILE_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
SETTINGS: Final[dict[str, Setting]] = {each.name: each for each in settings_of(Variables) if not each.secret}


def change_setting(path: Path, profile: str, key: str, value: str | None) -> None:
    """Set a key of a profile, or remove the key if `value` is None. Raises Refused and OSError."""
    if key not in SETTINGS:
        raise Refused(f"{key} is not a setting{suggestion(key, SETTINGS)} (use one of {', '.join(SETTINGS)})", key)
    if not _PROFILE_NAME_PATTERN.fullmatch(profile):
        raise Refused("a profile's name must be 1 to 64 letters, digits, - or _", PROFILE_VARIABLE)
    typed = None if value is None else _to_toml_value(key, value)
    with profiles_file(path).lock_for_change() as file:
        raw = file.read() or b""
        changed = {name: dict(table) for name, table in parse_profiles(path, raw).items()}
        if typed is not None:
            changed.setdefault(profile, {})[key] = typed
        elif changed.get(profile, {}).pop(key, None) is None:
            return
        try:
            text = _edit_profile(raw, profile, key, typed)
            if parse_profiles(path, text.encode()) != changed:
                raise ValueError
        except ValueError:  # for example a new profile in an inline table, which tomlkit cannot write
            raise Refused(
                f"svc cannot edit {path}, because its TOML layout is not supported: edit the file by hand",
                CONFIG_VARIABLE,
            ) from None
        read_from_sources(Variables, ProfileTable(changed[profile], path, profile))
        file.write(text)


def _edit_profile(raw: bytes, profile: str, key: str, value: Any) -> str:
    document: Any = tomlkit.parse(raw)
    if value is None:
        del document["profile"][profile][key]
    else:
        profiles = document.setdefault("profile", tomlkit.table(is_super_table=True))
        _set_key(profiles.setdefault(profile, tomlkit.table()), key, value)
    return tomlkit.dumps(document)


def _set_key(table: AbstractTable, key: str, value: Any) -> None:
    """Set a key. A new key goes before trailing blank lines and comments, which belong to the next table."""
    if key in table:
        table[key] = value
        return
    body = table.value.body
    trailing: list[Any] = []
    while body and body[-1][0] is None:
        trailing.append(body.pop()[1])
    table[key] = value
    for item in reversed(trailing):
        table.add(item)


def _to_toml_value(key: str, value: str) -> Any:
    """Convert a text to the TOML type of the setting."""
    if not value.isprintable():
        raise Refused(f"{key} must be a text without line breaks or control characters", key)
    typed = read_text(SETTINGS[key].kind, value, key)
    return list(typed) if isinstance(typed, tuple) else typed
