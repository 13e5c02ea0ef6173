"""How a vector file is written, and the made-up but fixed values in it.

The files are kept simple for readers in other languages: bytes are 0x hex, integers are decimal strings.
"""

import json
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_utils import keccak

CHAIN_ID = 31337


def at(name: str) -> bytes:
    return keccak(text=f"signing vectors: {name}")


SECRET = at("the signer")
SIGNER = Account.from_key(SECRET)


def hexed(raw: bytes) -> str:
    return "0x" + raw.hex()


def write(name: str, about: str, **content: Any) -> None:
    text = json.dumps({"about": about, **content}, indent=1, ensure_ascii=True)
    Path(__file__).parents[1].joinpath(f"{name}.json").write_text(text + "\n", encoding="ascii")
