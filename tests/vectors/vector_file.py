"""Read the vector files that Python, forge and JavaScript share.

    {"description": "…", "cases": [{"name": "…", …, "refused": "<failure class>"?}, …]}

A case with `refused` must be rejected for that reason. Every other case must be accepted with the given values.
README.md documents the fields of each file for readers in other languages.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PATTERN = "byte i is (7*i + floor(i/256)) mod 256"  # descriptions and README.md use the same words

Case = dict[str, Any]


def cases(name: str) -> list[Case]:
    """Return the cases of one file. A file without cases is an error, because it would prove nothing."""
    read: list[Case] = json.loads((FOLDER / name).read_text("utf-8"))["cases"]
    if not read:
        raise ValueError(f"{name} has no cases")
    names = [case["name"] for case in read]
    if len(set(names)) != len(names):
        raise ValueError(f"{name} names two cases alike")
    return read


def pattern(length: int) -> bytes:
    """Return the bytes of a case that gives only a length, by the rule in `PATTERN`."""
    period = bytes((7 * i + i // 256) % 256 for i in range(min(length, 65_536)))
    return (period * (length // 65_536 + 1))[:length] if period else b""
