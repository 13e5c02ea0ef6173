"""Runs a command that cannot outlive the process that started it.

    python -I -S parent_watch.py PARENT_PID SIGNAL RUN_AS COMMAND [ARGUMENT...]

A supervisor that is killed outright cleans nothing up, so its children must see to that themselves. On Linux
the kernel does: this file asks for SIGNAL at the death of the parent, then becomes the command. Elsewhere it
stays, watches the parent, and passes SIGNAL on.

RUN_AS is for commands that refuse to run as root: `account` makes the command nobody's, `namespace` puts it into a
user namespace in which root goes by nobody's name, and `-` changes nothing. What cannot be done is one line on
standard error, and the exit status is 125.

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
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

# linux/prctl.h, linux/securebits.h, linux/capability.h and linux/sched.h
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECUREBITS: Final = 28
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_SECBIT_NO_SETUID_FIXUP: Final = 1 << 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAP_DAC_OVERRIDE: Final = 1
_CLONE_NEWUSER: Final = 0x10000000

# On every system, and owns nothing.
UNPRIVILEGED: Final = "nobody"

_WATCH_SECONDS: Final = 0.25
_NOT_STARTED: Final = 125


def become_account() -> None:
    """Give up root for the unprivileged account.

    On Linux the right to pass closed directories is kept if it can be: a checkout below /root is out of reach
    for every other account, and data and programs both lie in it.
    """
    account = pwd.getpwnam(UNPRIVILEGED)
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is not None:
        # Capabilities outlive the change of account, and access(2) reckons with them, which it otherwise does for
        # root alone: by it programs look for the files beside them.
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if libc is not None:
        only = 1 << _CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        # Effective, permitted and inheritable of the low half, then of the high one.
        if libc.capset(header, (ctypes.c_uint32 * 6)(only, only, only, 0, 0, 0)) == 0:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)
        else:  # root without that right, as in some containers: at least none of the others is kept
            libc.capset(header, (ctypes.c_uint32 * 6)(0, 0, 0, 0, 0, 0))


def become_namesake() -> None:
    """Enter a user namespace where root has the unprivileged account's number, and no rights beyond its files."""
    if sys.platform != "linux":
        raise OSError("user namespaces are Linux's")
    account, user, group = pwd.getpwnam(UNPRIVILEGED), os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), f"no user namespace: {os.strerror(ctypes.get_errno())}")
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{account.pw_uid} {user} 1"),
        ("gid_map", f"{account.pw_gid} {group} 1"),
    ):
        Path("/proc/self", name).write_text(line, encoding="ascii")


def bind_to_parent(parent: int, death_signal: int) -> None:
    """Linux: have the kernel send `death_signal` to this process when its parent dies."""
    # After the change of account, which clears the request; exec of an ordinary program keeps it.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the request took hold: no signal will come
        sys.exit(_NOT_STARTED)


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


def become(command: list[str], run_as: str, parent: int, death_signal: int) -> int:
    """The command, in this process on Linux, else in one that is watched: then its exit status is returned."""
    if run_as == "account":
        become_account()
    elif run_as == "namespace":
        become_namesake()
    if sys.platform != "linux":
        return watch_over(parent, death_signal, command)
    bind_to_parent(parent, death_signal)
    return os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def main(arguments: list[str]) -> NoReturn:
    parent, death_signal, run_as, *command = arguments
    try:
        sys.exit(become(command, run_as, int(parent), int(death_signal)))
    except KeyError as error:
        sys.stderr.write(f"no such account: {error.args[0]}\n")
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]} as {run_as}: {error.strerror or error}\n")
    sys.exit(_NOT_STARTED)


if __name__ == "__main__":
    main(sys.argv[1:])
