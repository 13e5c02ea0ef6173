"""Runs a command that cannot outlive the process that started it.

    python -I -S tether.py PARENT_PID SIGNAL USER COMMAND [ARGUMENT...]

A supervisor that is killed outright cleans nothing up, so its children must see to that themselves. On Linux
the kernel does: this file asks for SIGNAL at the death of the parent, then becomes the command. Elsewhere it
stays, watches the parent, and passes SIGNAL on. USER is an account to run the command as, or `-`.

Started as a file with -I -S, it pays for neither site-packages nor the package that it lies in, hence imports
nothing but the standard library.

The kernel's signal is sent when the parent *thread* ends. Whoever starts a tethered command must do so from a
thread that lives as long as it is wanted.
"""

import contextlib
import ctypes
import os
import pwd
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Final, NoReturn

# linux/prctl.h and linux/capability.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_KEEPCAPS: Final = 8
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAP_DAC_OVERRIDE: Final = 1

_WATCH_SECONDS: Final = 0.25
_ORPHANED: Final = 125  # exit status when the parent was gone before the command could start


def become(user: str) -> None:
    """Give up root for `user`, for commands that refuse to run as root.

    On Linux the right to pass closed directories is kept if it can be: a checkout below /root is out of reach
    for every other account, and data and programs both lie in it.
    """
    account = pwd.getpwnam(user)
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is not None:
        libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if libc is not None:
        only = 1 << _CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        sets = (ctypes.c_uint32 * 6)(only, only, only, 0, 0, 0)  # effective, permitted, inheritable; low, high
        if libc.capset(header, sets) == 0:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


def bind_to_parent(parent: int, death_signal: int) -> None:
    """Linux: have the kernel send `death_signal` to this process when its parent dies."""
    # After the change of account, which clears the request; exec of an ordinary program keeps it.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the request took hold: no signal will come
        sys.exit(_ORPHANED)


def watch_over(parent: int, death_signal: int, command: list[str]) -> int:
    """Run `command` as a child, hand it our signals, end it when `parent` dies; returns its exit status."""
    child = subprocess.Popen(command)  # noqa: S603 - the supervisor's own command line

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, pass_on)
    while child.poll() is None:
        if os.getppid() != parent:
            child.send_signal(death_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()
        time.sleep(_WATCH_SECONDS)
    return child.returncode


def main(arguments: list[str]) -> NoReturn:
    parent, death_signal, user, *command = arguments
    if user != "-":
        become(user)
    if sys.platform == "linux":
        bind_to_parent(int(parent), int(death_signal))
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    sys.exit(watch_over(int(parent), int(death_signal), command))


if __name__ == "__main__":
    main(sys.argv[1:])
