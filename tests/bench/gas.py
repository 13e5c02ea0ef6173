"""Gas that a client causes, from the committed snapshots of forge. `python -m tests.contracts snapshot` renews them."""

import json
from pathlib import Path
from typing import Final

from tests.bench.row import Row

_SNAPSHOTS: Final = Path(__file__).parents[2] / "common" / "contracts" / "snapshots"
# Each figure: its name, the snapshot's file and key, and the most gas.
_FIGURES: Final = (("gas of a single job in one relay, Circle's token, 40 clients", "forty_clients", "life", 155_000),)


def rows() -> list[Row]:
    return [_row(*figure) for figure in _FIGURES]


def _row(name: str, snapshot: str, key: str, most: int) -> Row:
    gas = float(json.loads((_SNAPSHOTS / f"{snapshot}.json").read_text(encoding="utf-8"))[key])
    return Row.of(name, [gas] * 3, "gas", f"{most:,}", most, at_most=1)  # the same in each run, so without a spread
