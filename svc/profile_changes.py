"""Change one setting in the file of profiles. tomlkit keeps the owner's comments, order and spacing."""

import re
from pathlib import Path
from typing import Any, Final

import tomlkit
from tomlkit.items import AbstractTable

from common.refusal import Refused
from common.scalars import read_decimal
from svc.profiles import FILE_VARIABLE, KEYS, NAME_VARIABLE, as_variables, own_file, parse_profiles

_PROFILE_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NUMBER_KEYS: Final = frozenset({"settlement_margin", "max_amount", "max_batch_amount"})
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_FLAG_KEYS: Final = frozenset({"insecure_http", "signer_deterministic"})


def change_setting(path: Path, profile: str, key: str, value: str | None) -> None:
    """Set a key of a profile, or remove it. Raise Refused, and OSError where nothing can be written."""
    if key not in KEYS:
        raise Refused(f"unknown setting {key!r}: use one of {', '.join(KEYS)}", key)
    if not _PROFILE_NAME_PATTERN.fullmatch(profile):
        raise Refused("a profile's name must have 1 to 64 letters, digits, - and _", NAME_VARIABLE)
    typed = None if value is None else _typed(key, value)
    with own_file(path).changing() as file:
        raw = file.read() or b""
        wanted = {name: dict(table) for name, table in parse_profiles(path, raw).items()}
        if typed is not None:
            wanted.setdefault(profile, {})[key] = typed
        elif wanted.get(profile, {}).pop(key, None) is None:
            return
        try:
            text = _edited(raw, profile, key, typed)
            if parse_profiles(path, text.encode()) != wanted:
                raise ValueError
        except ValueError:  # such as a new profile in an inline table, which tomlkit cannot write
            raise Refused(
                f"{path} is written in a way that cannot be changed here: edit it by hand", FILE_VARIABLE
            ) from None
        as_variables(wanted[profile], f"{path}: [profile.{profile}]")
        file.write(text)


def _edited(raw: bytes, profile: str, key: str, value: str | int | bool | None) -> str:
    document: Any = tomlkit.parse(raw)
    if value is None:
        del document["profile"][profile][key]
    else:
        profiles = document.setdefault("profile", tomlkit.table(is_super_table=True))
        _set(profiles.setdefault(profile, tomlkit.table()), key, value)
    return tomlkit.dumps(document)


def _set(table: AbstractTable, key: str, value: str | int | bool) -> None:
    """Set a key. A new one comes before the blank lines and comments that end the table: they belong to the next."""
    if key in table:
        table[key] = value
        return
    body = table.value.body
    end: list[Any] = []
    while body and body[-1][0] is None:
        end.append(body.pop()[1])
    table[key] = value
    for item in reversed(end):
        table.add(item)


def _typed(key: str, value: str) -> str | int | bool:
    if key in _NUMBER_KEYS:
        return read_decimal(value, 256, key)
    if key in _FLAG_KEYS:
        if value.lower() not in _FLAGS:
            raise Refused(f"{key} must be true or false", key)
        return _FLAGS[value.lower()]
    if not value.isprintable():
        raise Refused(f"{key} must be a text without line breaks and control characters", key)
    return value
