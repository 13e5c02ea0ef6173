"""A fresh Debian root for each case, made by debootstrap, to try the project on other releases.

The mirror and the registries of pip and npm are read from this machine's configuration when a case runs.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from tests.install.environments.room import Case, Failed, Room, first_line, require

_NEWCOMER: Final = ("python3", "python3-venv", "git", "make", "ca-certificates")
_COMPILER: Final = ("gcc", "libc6-dev")
_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_SCRIPT: Final = "/usr/share/debootstrap/scripts/sid"  # works for suites newer than debootstrap as well
# /dev of a new root has no terminals and no file system in memory.
_ENTER: Final = (
    'mkdir -p "$0/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm" && '
    'mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts" && '
    'mount --bind "$0/dev/pts/ptmx" "$0/dev/ptmx" && exec chroot "$0" "$@"'
)
_PIP_SETTINGS: Final = ("index-url", "trusted-host", "proxy", "default-timeout")


def _why_no_root() -> str | None:
    if os.geteuid() != 0:
        return "only root can make a root folder"
    if shutil.which("debootstrap") is None:
        return "there is no debootstrap here (on Debian: the package debootstrap)"
    if subprocess.run(("unshare", "--mount", "--pid", "--fork", "true"), capture_output=True, check=False).returncode:
        return "there are no mount namespaces here"
    return None if _mirror() else "apt knows no mirror of Debian here"


def _mirror() -> str | None:
    asked = ("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian")
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return None
    return next(iter(listed.split()), None)


def _registries() -> dict[str, str]:
    """Return how this machine's pip and npm reach their registries, as environment variables."""
    pip = (sys.executable, "-m", "pip", "config", "list")
    listed = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    settings = dict(re.findall(r"^\S*\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    names = {name: f"PIP_{name.upper().replace('-', '_')}" for name in _PIP_SETTINGS}
    found = {names[name]: settings[name] for name in _PIP_SETTINGS if name in settings}
    if shutil.which("npm"):
        npm = ("npm", "config", "get", "registry")
        found["npm_config_registry"] = subprocess.run(npm, capture_output=True, text=True, check=True).stdout.strip()
    trust = ("PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "npm_config_cafile")
    return found | dict.fromkeys(trust, str(_BUNDLE))


def _within(room: Room, suite: str, packages: Sequence[str]) -> Room:
    """Return a room whose commands run in a new root folder with these packages. Processes end with their command."""
    root, mirror = room.folder / "root", _mirror()
    if mirror is None:
        raise Failed("apt knows no mirror of Debian here")
    room.run("debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, root, mirror, _SCRIPT)
    if _BUNDLE.exists():
        shutil.copyfile(_BUNDLE, root / _BUNDLE.relative_to("/"))
    alone = ("unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={root}/proc")
    entered = ("/bin/sh", "-c", _ENTER, str(root))
    clean = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")
    settings = tuple(f"{name}={value}" for name, value in _registries().items())
    return attrs.evolve(
        room, prefix=(*alone, *entered, *clean, *settings, "/bin/sh", "-c", 'cd /project && exec "$@"', "sh")
    )


def _debian(suite: str, python: tuple[int, int], packages: Sequence[str], room: Room) -> None:
    """Run the README's two commands as a newcomer types them."""
    inside = _within(room, suite, packages)
    room.checkout("root/project")
    name = "python{}.{}".format(*python)
    variable = () if name not in packages else (f"PYTHON=/usr/bin/{name}",)
    said = inside.run("make", "demo", *variable)
    first_line(said, "client: 22 jobs were bought and opened")
    first_line(said, "next: ")
    made = inside.run(".venv/bin/python", "-c", "import sys; print(*sys.version_info[:2])").split()
    require(tuple(map(int, made)) == python, f"it ran on Python {'.'.join(made)}")
    first_line(inside.run("make", "test", *variable), "test: every check passed")


def _case(name: str, suite: str, python: tuple[int, int], *more: str) -> Case:
    what = "a new Debian {} with Python {}.{}{}: make demo, make test".format(
        suite, *python, " and a C compiler" if more else ", git and make alone"
    )
    return Case(name, what, partial(_debian, suite, python, (*_NEWCOMER, *more)), _why_no_root)


DEBIAN_CASES: Final = (
    _case("debian-13", "trixie", (3, 13)),
    _case("debian-testing", "testing", (3, 14)),
    _case("debian-3.15", "testing", (3, 15), "python3.15", "python3.15-venv", "python3.15-dev", *_COMPILER),
)
