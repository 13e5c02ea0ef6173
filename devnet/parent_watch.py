"""Run a command that ends when its parent process dies.

    python -I -S parent_watch.py PARENT_PID SIGNAL RUN_AS COMMAND [ARGUMENT...]

A supervisor killed by SIGKILL cannot stop its children. On Linux, this script asks the kernel to send SIGNAL when the
parent dies, and then executes the command. On other systems, the script keeps running, watches the parent, and sends
SIGNAL itself.

RUN_AS is for commands that refuse to run as root. `account` runs the command as the user nobody. `namespace` runs it
in a user namespace that maps root to nobody. `-` changes nothing. On failure, the script prints one line to standard
error and exits with status 125.

The script imports only the standard library, so that it starts fast with -I -S.

The kernel sends the signal as soon as the parent *thread* ends, so start this script from a thread that outlives the
command.
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

# Constants of linux/prctl.h, linux/securebits.h, linux/capability.h and linux/sched.h.
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECUREBITS: Final = 28
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_SECBIT_NO_SETUID_FIXUP: Final = 1 << 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CAP_DAC_OVERRIDE: Final = 1
_CLONE_NEWUSER: Final = 0x10000000

UNPRIVILEGED: Final = "nobody"

_PARENT_POLL_INTERVAL_S: Final = 0.25
_NOT_STARTED_STATUS: Final = 125


def become_unprivileged() -> None:
    """Change from root to the unprivileged account.

    On Linux, keep the capability to enter other users' directories if possible: a checkout may lie below /root.
    """
    account = pwd.getpwnam(UNPRIVILEGED)
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if libc is not None:
        # Keep the capabilities across setuid, also for access(2), which programs call to find files.
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if libc is not None:
        only = 1 << _CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        # Effective, permitted and inheritable capabilities: first the low 32 bits of each, then the high ones.
        if libc.capset(header, (ctypes.c_uint32 * 6)(only, only, only, 0, 0, 0)) == 0:
            libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)
        else:  # root lacks the capability, as in some containers: drop all
            libc.capset(header, (ctypes.c_uint32 * 6)(0, 0, 0, 0, 0, 0))


def enter_user_namespace() -> None:
    """Enter a user namespace that maps root to the unprivileged account."""
    if sys.platform != "linux":
        raise OSError("user namespaces exist on Linux only")
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
    """Ask the kernel to send `death_signal` to this process when its parent dies (Linux only)."""

    # A change of account clears the death signal, so this call comes last. exec does not clear the signal.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent died before the call, so no signal will come
        sys.exit(_NOT_STARTED_STATUS)


def run_until_parent_dies(parent: int, death_signal: int, command: list[str]) -> int:
    """Run `command` as a child process, forward signals to it, and stop it when `parent` dies. Return the exit status
    of the child."""
    child = subprocess.Popen(command)  # noqa: S603 - the supervisor's own command line

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, forward_signal)
    while child.poll() is None:
        if os.getppid() != parent:
            child.send_signal(death_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            child.kill()
        time.sleep(_PARENT_POLL_INTERVAL_S)
    return child.returncode


def execute(command: list[str], run_as: str, parent: int, death_signal: int) -> int:
    """Execute the command in this process on Linux. On other systems, run it as a child and return its exit status."""
    if run_as == "account":
        become_unprivileged()
    elif run_as == "namespace":
        enter_user_namespace()
    if sys.platform != "linux":
        return run_until_parent_dies(parent, death_signal, command)
    bind_to_parent(parent, death_signal)
    return os.execv(command[0], command)  # noqa: S606 - needs no shell


def main(arguments: list[str]) -> NoReturn:
    parent, death_signal, run_as, *command = arguments
    try:
        sys.exit(execute(command, run_as, int(parent), int(death_signal)))
    except KeyError as error:
        sys.stderr.write(f"account not found: {error.args[0]}\n")
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]} as {run_as}: {error.strerror or error}\n")
    sys.exit(_NOT_STARTED_STATUS)


if __name__ == "__main__":
    main(sys.argv[1:])
