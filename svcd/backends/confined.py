"""Start a program that cannot access N paths: `python -I -S confined.py N PATH… COMMAND…`.

The program runs as svcd's user, which can read systemd's credentials, the journal and the key files. Landlock blocks
the paths permanently for the program and its descendants. Landlock also blocks ptrace and /proc/PID/mem of all other
processes and, from Linux 6.12, signals to them. Landlock does not block /proc/PID/environ. svcd blocks
this file with `hide_memory` in `common/daemon/secrets.py`.

Landlock can only grant access. This module grants everything except the blocked paths and their parent directories, and
then grants, one by one, the other entries that the parents have at the start. The program can list every directory.

This file runs as a script and imports only the standard library. If the program cannot be started, the script writes
the reason to standard error and exits with 126.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence

NOT_STARTED_STATUS = 126

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # syscall numbers, equal on every architecture
_VERSION_FLAG, _PATH_BENEATH_RULE = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_READ_DIRECTORY_RIGHT = 1 << 3
_FILE_RIGHTS = (1 << 0) | (1 << 1) | (1 << 2) | (1 << 14) | (1 << 15)  # execute, write, read, truncate, ioctl
_FILE_RIGHT_COUNT_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # number of file rights by Landlock version
_SIGNAL_SCOPE = 2  # scope that blocks signals, from version 6 on


class ConfinementFailed(Exception):
    """Landlock is missing from this kernel, or rejected a call."""


def landlock_version() -> int:
    """Return the kernel's Landlock version, or 0 if Landlock is missing."""
    version: int = _load_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(0, version)


def confine(blocked: Sequence[str]) -> None:
    """Block the paths for this thread and every process that it starts."""
    libc, version = _load_libc(), landlock_version()
    if version == 0:
        raise ConfinementFailed(
            "this kernel has no Landlock, which needs Linux 5.13 or newer and `landlock` in the boot parameter lsm="
        )
    handled = (1 << _FILE_RIGHT_COUNT_BY_VERSION.get(version, 16)) - 1
    attributes = (ctypes.c_uint64 * 3)(handled, 0, _SIGNAL_SCOPE if version >= 6 else 0)
    size = 24 if version >= 6 else 8
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        raise ConfinementFailed(f"Landlock rejects the ruleset: {os.strerror(ctypes.get_errno())}")
    _grant(libc, ruleset, "/", _READ_DIRECTORY_RIGHT)
    for path in granted_paths(blocked):
        _grant(libc, ruleset, path, handled)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)):
        raise ConfinementFailed(f"Landlock rejects the restriction: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def granted_paths(blocked: Sequence[str]) -> Iterator[str]:
    """Yield the paths to grant: the fewest that cover everything except the blocked paths."""
    # Block both a symbolic link and its target.
    links_and_targets = {os.path.abspath(path) for path in blocked} | {os.path.realpath(path) for path in blocked}
    yield from _unblocked_paths("/", links_and_targets)


def _unblocked_paths(directory: str, blocked: set[str]) -> Iterator[str]:
    if directory in blocked:
        return
    if not any(path.startswith(directory.rstrip("/") + "/") for path in blocked):
        yield directory
        return
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # unreadable directories are not granted
    for entry in entries:
        # A link needs no grant: access depends on its target.
        if not entry.is_symlink():
            yield from _unblocked_paths(entry.path, blocked)


def _grant(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # the path was removed, or this user cannot reach it
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        # The kernel expects a struct without padding.
        rule = rights.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH_RULE, ctypes.c_char_p(rule), ctypes.c_uint32(0)):
            raise ConfinementFailed(f"Landlock rejects the rule for {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def main(arguments: Sequence[str]) -> int:
    count = int(arguments[0])
    blocked, command = arguments[1 : count + 1], arguments[count + 1 :]
    try:
        confine(blocked)
        os.execv(command[0], list(command))  # noqa: S606 - this script exists to start the command
    except (ConfinementFailed, OSError) as error:
        sys.stderr.write(f"{command[0]} was not started: {error}\n")
    return NOT_STARTED_STATUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
