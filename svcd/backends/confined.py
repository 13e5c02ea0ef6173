"""Starts a program that cannot reach given files: `python -I -S confined.py N PATH… COMMAND…` keeps it from N paths.

The program runs as svcd's user, who owns systemd's credentials, the journal and the key files. Landlock permanently
blocks those paths for the program and its descendants. It also blocks ptrace and /proc/PID/mem of all other processes
and, from Linux 6.12, signals to them. It does not block /proc/PID/environ, which svcd closes in
`common/daemon/process.py`.

Landlock can only grant access. This module grants everything except the given paths and their parent directories, and
then grants the parents' other entries one by one, as they are at the start. Directories can be listed everywhere.

This file runs as a script and imports only the standard library. It exits with 126, and the reason on standard error,
if the program was not started.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence

NOT_STARTED = 126

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION, _BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_LIST = 1 << 3
_OF_FILES = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)  # execute, write, read, truncate, ioctl
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # how many rights on files each version of Landlock knows
_SIGNALS = 2  # a scope, from version 6 on


class ConfinementFailed(Exception):
    """Landlock is missing or refused a call."""


def version() -> int:
    """Return the version of the kernel's Landlock, or 0 without one."""
    known: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(0, known)


def confine(kept: Sequence[str]) -> None:
    """Block the paths for this thread and every process it starts."""
    libc, known = _libc(), version()
    if known == 0:
        raise ConfinementFailed("this kernel has no Landlock (Linux 5.13 and lsm=landlock)")
    handled = (1 << _RIGHTS.get(known, 16)) - 1
    attributes = (ctypes.c_uint64 * 3)(handled, 0, _SIGNALS if known >= 6 else 0)
    size = 24 if known >= 6 else 8
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        raise ConfinementFailed(f"Landlock takes no ruleset: {os.strerror(ctypes.get_errno())}")
    _grant(libc, ruleset, "/", _LIST)
    for path in granted(kept):
        _grant(libc, ruleset, path, handled)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)):
        raise ConfinementFailed(f"Landlock does not restrict: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def granted(kept: Sequence[str]) -> Iterator[str]:
    """Yield the fewest paths that cover everything except the kept ones."""
    # Block both a symbolic link and its target.
    whole = {os.path.abspath(path) for path in kept} | {os.path.realpath(path) for path in kept}
    yield from _beside("/", whole)


def _beside(directory: str, kept: set[str]) -> Iterator[str]:
    if directory in kept:
        return
    if not any(path.startswith(directory.rstrip("/") + "/") for path in kept):
        yield directory
        return
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # unreadable directories are not granted
    for entry in entries:
        # A link needs no grant: access depends on its target.
        if not entry.is_symlink():
            yield from _beside(entry.path, kept)


def _grant(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # the path was removed, or this user cannot reach it
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)  # packed: no padding
        if libc.syscall(_ADD_RULE, ruleset, _BENEATH, ctypes.c_char_p(rule), ctypes.c_uint32(0)):
            raise ConfinementFailed(f"Landlock takes no rule for {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(place)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def main(arguments: Sequence[str]) -> int:
    count = int(arguments[0])
    kept, command = arguments[1 : count + 1], arguments[count + 1 :]
    try:
        confine(kept)
        os.execv(command[0], list(command))  # noqa: S606 - starting it is what this is for
    except (ConfinementFailed, OSError) as error:
        sys.stderr.write(f"{command[0]} was not started: {error}\n")
    return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
