"""Run a command as with a kernel that was built without IPv6: creating an IPv6 socket fails.

    python without_ipv6.py COMMAND [ARGUMENT...]

A seccomp filter (Linux) rejects the system calls. Needs no root, and lasts as long as the command.
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from typing import Final

_SOCKET_CALL: Final = {"x86_64": 41, "aarch64": 198}
# linux/prctl.h and linux/seccomp.h
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_MODE_FILTER: Final = 2
_RETURN_ERRNO, _RETURN_ALLOW = 0x0005_0000, 0x7FFF_0000
# linux/bpf_common.h: load a word, jump if equal, return
_LOAD, _JUMP_IF, _RETURN = 0x20, 0x15, 0x06
_CALL_NUMBER, _FIRST_ARGUMENT = 0, 16  # in struct seccomp_data


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def why_not() -> str | None:
    """Return the reason why this machine cannot filter system calls, or None."""
    if sys.platform != "linux":
        return "filters on system calls are Linux's"
    return None if platform.machine() in _SOCKET_CALL else f"no number of the socket call for {platform.machine()}"


def refuse_ipv6() -> None:
    """Install the filter for this process and all its children, permanently."""
    lines = [
        (_LOAD, 0, 0, _CALL_NUMBER),
        (_JUMP_IF, 0, 3, _SOCKET_CALL[platform.machine()]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF, 0, 1, socket.AF_INET6),
        (_RETURN, 0, 0, _RETURN_ERRNO | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _RETURN_ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = _Program(len(lines), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


if __name__ == "__main__":
    refuse_ipv6()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - the case's own command line
