"""A pytest plugin that simulates another platform for `svc` and `common`. SVC_PLATFORM names it (`win32` or `darwin`).

Modules of the two packages see the platform's `sys.platform`, an `os` without missing functions, and no missing
modules. pytest, the event loops and the tests run unchanged. Load the plugin before any of the packages' modules:

    SVC_PLATFORM=win32 python -m pytest -p tests.install.portability.other_platform tests/unit/svc
"""

import builtins
import fcntl
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import pytest

# `resource`, `pwd` and similar modules exist only on POSIX. /proc, epoll and prctl exist only on Linux.
_POSIX_MODULES: Final = frozenset({"fcntl", "grp", "pwd", "pty", "resource", "syslog", "termios", "tty"})
# packages without wheels for either platform, which pyproject.toml excludes there
_NO_WHEELS: Final = frozenset({"sha3"})
_WINDOWS_MODULES: Final = frozenset({"msvcrt", "winreg", "_winapi"})
_LINUX_OS: Final = frozenset({"memfd_create", "sched_getaffinity", "posix_fadvise", "splice", "pipe2", "O_TMPFILE"})
_POSIX_OS: Final = _LINUX_OS | {
    *("fork", "forkpty", "getuid", "geteuid", "getgid", "getegid", "getpgid", "setsid", "setpgid", "killpg", "chown"),
    *("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "mkfifo", "fchmod", "fchown", "uname", "nice", "umask"),
    *("register_at_fork", "waitid", "wait3", "wait4", "statvfs", "fchdir", "sync", "getloadavg", "ttyname", "sysconf"),
}
OURS: Final = ("svc", "common")


class _Seen(ModuleType):
    """A module as it appears on the other platform."""

    def __init__(self, real: ModuleType, lacks: frozenset[str], changed: Mapping[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(changed)
        self._real, self._lacks = real, lacks

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this platform")
        return getattr(self._real, name)


def _locking(number: int, mode: int, _: int) -> None:
    fcntl.flock(number, fcntl.LOCK_EX if mode == 1 else fcntl.LOCK_UN)


def _windows_locks() -> ModuleType:
    module = ModuleType("msvcrt")
    module.__dict__.update(locking=_locking, LK_LOCK=1, LK_UNLCK=0)
    return module


def install(platform: str) -> None:
    """Restrict the imports of svc and common to what the platform has. Neither package may be imported yet."""
    early = sorted(name for name in sys.modules if name.partition(".")[0] in OURS)
    if early:
        raise RuntimeError(f"imported before the platform was chosen: {', '.join(early)}")
    windows = platform == "win32"
    lacks = _POSIX_OS if windows else _LINUX_OS
    locks = ModuleType("fcntl")
    locks.__dict__.update({name: value for name, value in vars(fcntl).items() if "PIPE_SZ" not in name})
    seen = {
        "sys": _Seen(sys, frozenset(), {"platform": platform}),
        "os": _Seen(os, lacks, {"name": "nt"} if windows else {}),
        **({"msvcrt": _windows_locks()} if windows else {"fcntl": locks}),
    }
    hidden = ((_POSIX_MODULES if windows else _WINDOWS_MODULES) | _NO_WHEELS) - seen.keys()
    really = builtins.__import__

    def imported(name: str, *rest: Any, **more: Any) -> ModuleType:
        scope = rest[0] if rest else more.get("globals")
        importer = str((scope or {}).get("__name__", ""))
        if importer.partition(".")[0] in OURS:
            if name.partition(".")[0] in hidden:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in seen:
                return seen[name]
        return really(name, *rest, **more)

    builtins.__import__ = imported  # type: ignore[assignment] # same signature, with unnamed arguments


install(os.environ["SVC_PLATFORM"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests in `ELSEWHERE`, with their reasons."""
    from tests.install.portability.elsewhere import ELSEWHERE  # noqa: PLC0415 - it may import what is ours

    for item in items:
        for part, why in ELSEWHERE[os.environ["SVC_PLATFORM"]].items():
            if part in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=why))
