"""Positions of keys in a TOML file, which `tomllib` does not report.

A scan of the lines for table headers and `key =` is enough to point at a mistake. It never reads a value.
"""

import re
from typing import Final

KeyPath = tuple[str | int, ...]

_HEADER: Final = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, path: KeyPath) -> int | None:
    """The line (from 1) of a key, or of the nearest table round it; None when not even that is written out.

    Elements of arrays of tables are counted from 0: `("model", 1, "slots")`.
    """
    places = _places(text)
    return next((places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in places), None)


def _places(text: str) -> dict[KeyPath, int]:
    places: dict[KeyPath, int] = {}
    arrays: dict[KeyPath, int] = {}  # how many elements each array of tables has so far
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _resolve(_parts(header[2]), arrays)
            if header[1] == "[[":
                index = arrays.get(table, 0)
                arrays[table] = index + 1
                places.setdefault(table, number)
                table = (*table, index)
            places.setdefault(table, number)
        elif key := _KEY.match(line):
            path = table
            for part in _parts(key[1]):
                path = (*path, part)
                places.setdefault(path, number)
    return places


def _resolve(parts: list[str], arrays: dict[KeyPath, int]) -> KeyPath:
    """A header below an array of tables belongs to the array's last element."""
    path: KeyPath = ()
    for n, part in enumerate(parts):
        path = (*path, part)
        if path in arrays and n < len(parts) - 1:
            path = (*path, arrays[path] - 1)
    return path


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]
