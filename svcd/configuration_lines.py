"""Where in a TOML text a key stands: `tomllib` gives values without positions, and a mistake is named by its line.

A scan of the lines for table headers and `key =`: enough to point at a mistake, and never used to read a value.
"""

import re
from typing import Final

_HEADER: Final = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")

Path = tuple[str | int, ...]


def line_of(text: str, path: Path) -> int | None:
    """The line (from 1) of a key, or of the nearest table round it; None when not even that is written out.

    Elements of arrays of tables are counted from 0: `("model", 1, "slots")`.
    """
    places = _places(text)
    for end in range(len(path), 0, -1):
        if path[:end] in places:
            return places[path[:end]]
    return None


def dotted(path: Path) -> str:
    """As messages write it: `model[1].slots`."""
    written = ""
    for part in path:
        written += f"[{part}]" if isinstance(part, int) else f".{part}" if written else part
    return written


def _places(text: str) -> dict[Path, int]:
    places: dict[Path, int] = {}
    arrays: dict[Path, int] = {}  # how many elements each array of tables has so far
    table: Path = ()
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


def _resolve(parts: list[str], arrays: dict[Path, int]) -> Path:
    """A header below an array of tables belongs to the array's last element."""
    path: Path = ()
    for n, part in enumerate(parts):
        path = (*path, part)
        if path in arrays and n < len(parts) - 1:
            path = (*path, arrays[path] - 1)
    return path


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]
