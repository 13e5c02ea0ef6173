"""Changes to the profiles file, line by line. Everything else that its owner wrote stays."""

import json
import re
from pathlib import Path
from typing import Final

from common.refusal import Refused
from common.scalars import read_decimal
from svc.profiles import FILE_VARIABLE, KEYS, NAME_VARIABLE, as_variables, own_file, parse_profiles

_PROFILE_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NUMBER_KEYS: Final = frozenset({"settlement_margin", "max_amount", "max_batch_amount"})
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_FLAG_KEYS: Final = frozenset({"insecure_http", "signer_deterministic"})


def change_setting(path: Path, profile: str, key: str, value: str | None) -> None:
    """Set or remove a key of a profile. Raises Refused, and OSError if the file cannot be written."""
    if key not in KEYS:
        raise Refused(f"unknown setting {key!r}: use one of {', '.join(KEYS)}", key)
    if not _PROFILE_NAME_PATTERN.fullmatch(profile):
        raise Refused("a profile's name must have 1 to 64 letters, digits, - and _", NAME_VARIABLE)
    typed_value = None if value is None else _typed(key, value)
    with own_file(path).changing() as file:
        raw = file.read() or b""
        before = parse_profiles(path, raw)
        text = _edited(raw.decode("utf-8"), f"[profile.{profile}]", key, typed_value)
        wanted = {name: dict(table) for name, table in before.items()}
        if typed_value is not None:
            wanted.setdefault(profile, {})[key] = typed_value
        else:
            wanted.get(profile, {}).pop(key, None)
        if parse_profiles(path, text.encode()) != wanted:
            raise Refused(f"cannot change {path} automatically: edit it by hand", FILE_VARIABLE)
        as_variables(wanted.get(profile, {}), f"{path}: [profile.{profile}]")
        file.write(text)


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


def _edited(text: str, head: str, key: str, value: str | int | bool | None) -> str:
    lines = text.splitlines()
    if head not in (line.strip() for line in lines):
        if value is None:
            return text
        lines += [*([""] if lines else []), head]
    first = next(at for at, line in enumerate(lines) if line.strip() == head) + 1
    last = next((at for at in range(first, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))
    at = next((at for at in range(first, last) if lines[at].partition("=")[0].strip() == key), None)
    # Printable text has the same form as a JSON string and as a basic string of TOML.
    new_lines = [] if value is None else [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    if at is not None:
        lines[at : at + 1] = new_lines
    else:
        while last > first and not lines[last - 1].partition("#")[0].strip():
            last -= 1  # keep blank lines and comments above the next profile
        lines[last:last] = new_lines
    return "\n".join(lines) + "\n"
