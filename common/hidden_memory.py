"""Closes a process's memory to others of its user: nothing may trace it, or read /proc/PID/mem.

For daemons that hold keys. A debugger then needs root (CAP_SYS_PTRACE).
"""

import ctypes
import sys
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PR_GET_DUMPABLE: Final = 3


def hide_memory() -> bool:
    """Whether it is hidden now. Elsewhere than on Linux there is nothing to do it with."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 == libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))
