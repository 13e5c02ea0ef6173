"""Protect a daemon's secrets from logs and from other processes of the same user."""

import ctypes
import sys
from typing import Final

import attrs

_PR_SET_DUMPABLE: Final = 4
_PR_GET_DUMPABLE: Final = 3


@attrs.frozen(slots=True, repr=False, str=False)
class Secret:
    """String that prints as <SECRET>. Call `reveal()` only where the value is used."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "<SECRET>"


def hide_memory() -> bool:
    """Make the process's memory unreadable to other processes of its user. Return True on success (Linux only)."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 == libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))
