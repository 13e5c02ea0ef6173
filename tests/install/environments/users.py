"""Non-root users to run commands as: a temporary account, and a user id without an account."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.install.environments.room import Room

_NAMELESS: Final = 54_321
_NO_GROUP: Final = 65_534
_CHECK: Final = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"


def why_no_account() -> str | None:
    if shutil.which("useradd") is None or shutil.which("userdel") is None:
        return "there is no useradd here"
    return why_no_other_user()


def why_no_other_user() -> str | None:
    """Return the reason why commands cannot run as another user here, or None."""
    if os.geteuid() != 0:
        return "only root can become somebody else"
    if shutil.which("setpriv") is None:
        return "there is no setpriv here"
    return None if python_for(_NAMELESS) else "no Python with venv that another user can run (below /root none can)"


def python_for(user: int) -> str | None:
    """Return an interpreter in folders that this user can enter."""
    candidates = (getattr(sys, "_base_executable", sys.executable), "/usr/local/bin/python3", "/usr/bin/python3")
    for candidate in candidates:
        command = (*_as(user), candidate, "-I", "-c", _CHECK)
        if Path(candidate).exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return candidate
    return None


@contextmanager
def account() -> Iterator[int]:
    """Create a system user with only a name, and remove it at the end."""
    name = f"env-{secrets.token_hex(4)}"
    subprocess.run(("useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name), check=True)
    try:
        listed = subprocess.run(("id", "-u", name), capture_output=True, text=True, check=True)
        yield int(listed.stdout)
    finally:
        subprocess.run(("userdel", name), check=True)


@contextmanager
def nameless() -> Iterator[int]:
    """Yield a user id without an account, as containers often use."""
    yield _NAMELESS


def owned_by(room: Room, user: int) -> Room:
    """Give the room and its content to this user."""
    for path in (room.folder, *room.folder.rglob("*")):
        os.chown(path, user, _NO_GROUP, follow_symlinks=False)
    return room.within(*_as(user))


def _as(user: int) -> tuple[str, ...]:
    # The first program starts with root's right to enter closed folders. The shell's children do not have that right.
    shell = ("/bin/sh", "-c", '"$@"', "sh")
    return ("setpriv", "--reuid", str(user), "--regid", str(_NO_GROUP), "--clear-groups", "--", *shell)
