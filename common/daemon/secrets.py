"""Secrets of a daemon: values that never print, and memory that other processes of its user cannot read."""

import ctypes
import sys
from typing import Final

import attrs


@attrs.frozen(slots=True, repr=False, str=False)
class Secret:
    """Read it with `reveal()`, at the one place that needs it."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "<SECRET>"


_PR_SET_DUMPABLE: Final = 4
_PR_GET_DUMPABLE: Final = 3


def hide_memory() -> bool:
    """Whether it is hidden now. Elsewhere than on Linux there is nothing to do it with."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 == libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))
