"""The vector files, as tests read them."""

import json
from pathlib import Path
from typing import Any


def vectors(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def raw(hexed: str) -> bytes:
    return bytes.fromhex(hexed.removeprefix("0x"))
