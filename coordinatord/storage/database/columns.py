"""Transpose rows to columns, for statements that take many rows through `unnest`."""

from collections.abc import Sequence
from typing import Any


def to_columns(rows: Sequence[object], *names: str) -> list[list[Any]]:
    """Return one list for each named attribute of the rows."""
    return [[getattr(row, name) for row in rows] for name in names]
