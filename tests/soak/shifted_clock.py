"""Run a module with a wall clock that other processes can shift, like a machine with a wrong clock that is corrected
later.

    python -m tests.soak.shifted_clock <file> <module> <argument>…

The file holds the shift in seconds as one double, and may change at any time. Only the wall clock is shifted. The
clocks for durations and the database's clock stay right.
"""

import mmap
import runpy
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_SHIFT: Final = struct.Struct("<d")


def write_shift(path: Path, seconds: float) -> None:
    """Write in place, because processes under the clock have the file mapped."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_SHIFT.pack(seconds))


def shifted(real: Callable[[], float], shift: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() + shift()


def main() -> None:
    path, module, *arguments = sys.argv[1:]
    with Path(path).open("rb") as file:
        mapped = mmap.mmap(file.fileno(), _SHIFT.size, access=mmap.ACCESS_READ)
    time.time = shifted(time.time, lambda: float(_SHIFT.unpack(mapped[: _SHIFT.size])[0]))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
