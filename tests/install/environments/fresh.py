"""Cases that set up a fresh copy of the project. Each runs `make demo`, which takes minutes."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from tests.install.environments import users
from tests.install.environments.quick import AWKWARD
from tests.install.environments.room import Case, Failed, Room, first_line, names_below, require, require_nothing_runs
from tests.install.locks import PYTHONS

_PYTHONS: Final = [tuple(map(int, version.split("."))) for version in PYTHONS]
_COMPILERS: Final = ("cc", "gcc", "clang", "c89", "c99", "c++", "g++", "tcc", "x86_64-linux-gnu-gcc")


def _demo(room: Room, checkout: Path, *variables: str) -> str:
    """Run `make demo`, and check that the output announces the steps, succeeds and names the next command."""
    said = room.run("make", "demo", *variables, at=checkout)
    require(said.startswith("demo: brings a whole local market up"), f"the first line does not tell: {said[:200]}")
    first_line(said, "client: 22 jobs were bought and opened")
    first_line(said, "next: ")
    return said


def _root(room: Room) -> None:
    """Run all steps of a newcomer as root in an empty folder, then check that cleaning restores the folder."""
    checkout = room.checkout()
    before = names_below(checkout)
    _demo(room, checkout)
    with room.start("make", "devnet", at=checkout) as devnet:
        assert devnet.stdout is not None
        said = []
        for line in devnet.stdout:
            said.append(line)
            if line.startswith("up:"):
                break
        else:
            raise Failed(f"make devnet did not come up: {''.join(said)}")
        cleaned = room.run("make", "clean", at=checkout)
        first_line(cleaned, "stopped the devnet in")
        devnet.communicate(timeout=180)
    require_nothing_runs(room.folder)
    require(names_below(checkout) == before, f"left in the checkout: {names_below(checkout) ^ before}")
    # pip calls `rustc --version`, and rustup's wrapper of rustc creates files when called.
    ours = (".npm/", ".cache/pip/", ".rustup/")
    left = {name for name in names_below(room.home) if not name.startswith(ours)}
    require(not left, f"left in the home: {left}")
    require(not names_below(room.temporary), f"left among temporary files: {names_below(room.temporary)}")


def _umask(room: Room) -> None:
    _demo(room.within("/bin/sh", "-c", 'umask 077 && exec "$@"', "sh"), room.checkout())


def _home(room: Room) -> None:
    """Root cannot create the first folder either. For other users, a read-only folder is enough."""
    room.home.chmod(0o500)
    home = "/proc/nowhere" if os.geteuid() == 0 else str(room.home)
    caches = ("PIP_CACHE_DIR", "npm_config_cache")
    without = {name: value for name, value in room.environment.items() if name not in caches}
    _demo(Room(room.folder, {**without, "HOME": home}, room.prefix), room.checkout())


def _path(room: Room) -> None:
    _demo(room, room.checkout(AWKWARD.replace("'", "").replace("&", "und")))


def _user(kind: Callable[[], AbstractContextManager[int]], room: Room) -> None:
    with kind() as user:
        checkout = room.checkout()
        # The caches and the folders of root's programs belong to root.
        without = {name: value for name, value in room.environment.items() if name != "PIP_CACHE_DIR"}
        without["npm_config_cache"] = str(room.folder / "npm")
        theirs = users.owned_by(Room(room.folder, without, room.prefix), user)
        _demo(theirs, checkout, f"PYTHON={users.python_for(user)}")


def _without(room: Room, *names: str) -> Room:
    """Return PATH without these programs and their versioned names (name, dash, version)."""
    folder = room.folder / "bin"
    folder.mkdir()
    left_out = re.compile(rf"({'|'.join(map(re.escape, names))})(-.*)?")
    for place in map(Path, room.environment["PATH"].split(":")):
        for program in place.iterdir() if place.is_dir() else ():
            link = folder / program.name
            if not left_out.fullmatch(program.name) and not link.is_symlink() and os.access(program, os.X_OK):
                link.symlink_to(program)
    return room.within(PATH=str(folder))


def _no_npm(room: Room) -> None:
    without = _without(room, "node", "nodejs", "npm", "npx")
    said = _demo(without, without.checkout(), f"PYTHON={_interpreter(sys.version_info[:2])}")
    first_line(said, "set-up: no node 20 or newer with npm here")


def _no_compiler(room: Room) -> None:
    without = _without(room, *_COMPILERS)
    _demo(without, without.checkout(), f"PYTHON={_interpreter(sys.version_info[:2])}")


def _python(version: tuple[int, int], room: Room) -> None:
    _demo(room, room.checkout(), f"PYTHON={_interpreter(version)}")


def _interpreter(version: tuple[int, int]) -> str | None:
    """Return an interpreter of this version that can create virtual environments, from PATH or pyenv."""
    name = "python{}.{}".format(*version)
    places = [shutil.which(name), *Path.home().glob(f".pyenv/versions/{version[0]}.{version[1]}.*/bin/{name}")]
    for place in filter(None, (*places, f"/usr/bin/{name}")):
        command = (str(place), "-I", "-c", "import ensurepip, sys; print(sys.executable)")
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    return None


def _why_no_python(version: tuple[int, int]) -> str | None:
    return None if _interpreter(version) else "no Python {}.{} with venv here".format(*version)


def _offline(room: Room) -> None:
    """Check that a finished set-up works without a network. `make test` begins with the same steps."""
    checkout = room.checkout()
    _demo(room, checkout)
    room.run("make", "programs", "lint", at=checkout)
    cut_off = _cut_off(room)
    _demo(cut_off, checkout)
    cut_off.run("make", "programs", "lint", at=checkout)


def _cut_off(room: Room) -> Room:
    """Cut the room off from the network: by a network namespace if allowed, otherwise by proxies that do not exist."""
    alone = ("unshare", "--net", "/bin/sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    try:
        if subprocess.run((*alone, "true"), capture_output=True, check=False).returncode == 0:
            return room.within(*alone)
    except FileNotFoundError:
        pass
    nowhere = "http://127.0.0.1:9"
    return room.within(http_proxy=nowhere, https_proxy=nowhere, HTTP_PROXY=nowhere, HTTPS_PROXY=nowhere)


FRESH_CASES: Final = (
    Case("newcomer", "a fresh clone closed to others (root's, where root runs this): demo, devnet, clean", _root),
    Case("umask", "umask 077", _umask),
    Case("home", "a home that cannot be written", _home),
    Case("path", "a path of spaces and umlauts, longer than 120 characters", _path),
    Case("user", "another user than root", partial(_user, users.account), users.why_no_account),
    Case("nameless", "a user without an account", partial(_user, users.nameless), users.why_no_other_user),
    Case("no-npm", "no npm and no node", _no_npm),
    Case("no-compiler", "no C compiler", _no_compiler),
    *(
        Case(
            "python-{}.{}".format(*version),
            "Python {}.{}".format(*version),
            partial(_python, version),
            partial(_why_no_python, version),
        )
        for version in _PYTHONS
    ),
    Case("offline", "the second run, without a network", _offline),
)
