"""Changes of the file of profiles, line by line: what its owner wrote beside the settings stays."""

import json
import re
from pathlib import Path
from typing import Final

from common.refusal import Refused
from common.scalars import read_decimal
from svc.profiles import FILE_VARIABLE, KEYS, NAME_VARIABLE, as_variables, own_file, parsed

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NUMBERS: Final = frozenset({"settlement_margin", "max_amount", "max_batch_amount"})
_FLAGS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_FLAGGED: Final = frozenset({"insecure_http", "signer_deterministic"})


def change_setting(path: Path, profile: str, key: str, value: str | None) -> None:
    """Sets a key of a profile, or takes it away. Raises Refused, and OSError where nothing can be written."""
    if key not in KEYS:
        raise Refused(f"there is no setting {key!r} (there are: {', '.join(KEYS)})", key)
    if not _NAME.fullmatch(profile):
        raise Refused("a profile's name must have 1 to 64 letters, digits, - and _", NAME_VARIABLE)
    held = None if value is None else _typed(key, value)
    with own_file(path).changing() as file:
        raw = file.read() or b""
        before = parsed(path, raw)
        text = _edited(raw.decode("utf-8"), f"[profile.{profile}]", key, held)
        wanted = {name: dict(table) for name, table in before.items()}
        if held is not None:
            wanted.setdefault(profile, {})[key] = held
        else:
            wanted.get(profile, {}).pop(key, None)
        if parsed(path, text.encode()) != wanted:
            raise Refused(f"{path} is written in a way that cannot be changed here: edit it by hand", FILE_VARIABLE)
        as_variables(wanted.get(profile, {}), f"{path}: [profile.{profile}]")
        file.write(text)


def _typed(key: str, value: str) -> str | int | bool:
    if key in _NUMBERS:
        return read_decimal(value, 256, key)
    if key in _FLAGGED:
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
    # A basic string of TOML is written as one of JSON; printable text needs no escapes that only one of them has.
    written = [] if value is None else [f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    if at is not None:
        lines[at : at + 1] = written
    else:
        while last > first and not lines[last - 1].partition("#")[0].strip():
            last -= 1  # blank lines and comments there are the next profile's
        lines[last:last] = written
    return "\n".join(lines) + "\n"
