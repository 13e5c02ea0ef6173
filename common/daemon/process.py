"""Process of a daemon: notices to systemd, the error that ends it, secrets that never print, memory kept closed."""

import ctypes
import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

import anyio
import attrs

RELEASE: Final = "0.1.0"
"""The release that runs: the one version of all three programs, as pyproject.toml has it (a test compares the two).
Reading the installed metadata instead would import a dozen modules."""


class Systemd:
    """The notify socket of this service, if any."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog = environ.get("WATCHDOG_USEC", "")
        # Half the time that systemd allows, as its manual advises.
        self.watchdog_seconds = int(watchdog) / 2_000_000 if watchdog.isdigit() and int(watchdog) else None

    def say(self, *lines: str) -> None:
        """Send e.g. `READY=1`, `STOPPING=1`, `WATCHDOG=1`, `STATUS=...`. A lost message is never worth a crash."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return

    async def keep_alive(self) -> None:
        """Feed the watchdog from inside the event loop: a loop that hangs stops feeding it."""
        if self.watchdog_seconds is None:
            return
        while True:
            self.say("WATCHDOG=1")
            await anyio.sleep(self.watchdog_seconds)


# The error that stops a daemon.


@attrs.frozen(slots=True)
class Fatal(Exception):
    """The daemon cannot run: a wrong configuration, a port that is taken, a chain that is not the expected one."""

    message: str

    def __str__(self) -> str:
        return self.message


# Secret value that is never printed: not in a repr, a log line or a traceback of attrs values.


@attrs.frozen(slots=True, repr=False, str=False)
class Secret:
    """Read it with `reveal()`, at the one place that needs it."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "<SECRET>"


# Closes a process's memory to others of its user: nothing may trace it, or read /proc/PID/mem.
#
# For daemons that hold keys. A debugger then needs root (CAP_SYS_PTRACE).

_PR_SET_DUMPABLE: Final = 4
_PR_GET_DUMPABLE: Final = 3


def hide_memory() -> bool:
    """Whether it is hidden now. Elsewhere than on Linux there is nothing to do it with."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    return bool(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 == libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))
