"""Cases, and a private place for each: a folder with a home folder and a folder for temporary files."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[3]
_SECONDS: Final = 2400
_SHOWN_LINES: Final = 15  # of a failed command's output
# Project variables, and settings that users have for pip and npm. All other variables are dropped.
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_KEPT_PREFIXES: Final = ("PIP_", "NPM_CONFIG_", "npm_config_", "NODE_EXTRA_", "http_proxy", "https_proxy")


class Failed(Exception):
    """An expectation failed. `output` is everything that the failed command printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@attrs.frozen
class Room:
    folder: Path
    environment: dict[str, str]
    prefix: tuple[str, ...] = ()  # command that applies the case's restriction

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def within(self, *prefix: str, **environment: str) -> "Room":
        """Return the same room under a further restriction."""
        return attrs.evolve(self, prefix=(*self.prefix, *prefix), environment={**self.environment, **environment})

    def start(self, *command: str | Path, at: Path = ROOT) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, *map(str, command)],
            cwd=at,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str | Path, at: Path = ROOT, status: int = 0) -> str:
        """Run a command and return its output. Raise `Failed` on any other exit status."""
        with self.start(*command, at=at) as process:
            try:
                said, _ = process.communicate(timeout=_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # SIGTERM, so that child processes end as well
                said = f"{process.communicate()[0]}\nnot over in {_SECONDS} s"
            except BaseException:
                process.terminate()
                raise
        if process.returncode != status:
            last = "\n".join(f"    {line}" for line in said.splitlines()[-_SHOWN_LINES:])
            raise Failed(f"{' '.join(map(str, command))} ended with status {process.returncode}:\n{last}", said)
        return said

    def checkout(self, name: str = "checkout") -> Path:
        """Copy the project as git would clone it, including uncommitted changes."""
        target = self.folder / name
        for file in _files():
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, target / file)
        return target


def _files() -> list[str]:
    listing = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        raise Failed("copying this folder takes git, and a clone made by it")
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@contextmanager
def room(caches: Path | None = None) -> Iterator[Room]:
    """Create a room. `caches`: shared caches of pip and npm, to avoid downloads for each case."""
    folder = Path(tempfile.mkdtemp(prefix="environments-"))  # mode 0700, as mktemp makes it
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    made = Room(folder, {**kept, "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")})
    if caches is not None:
        made.environment.update(PIP_CACHE_DIR=str(caches / "pip"), npm_config_cache=str(caches / "npm"))
    made.home.mkdir()
    made.temporary.mkdir()
    try:
        yield made
        require_nothing_runs(folder)
    finally:
        shutil.rmtree(folder)


def require_nothing_runs(folder: Path, seconds: float = 15) -> None:
    """Wait until no process has a file or its current directory in the folder."""
    deadline = time.monotonic() + seconds
    while left := _running(folder):
        if time.monotonic() > deadline:
            raise Failed(f"still running in {folder}: {left}")
        time.sleep(0.1)


def _running(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            inside = str(folder) in command or (process / "cwd").readlink().is_relative_to(folder)
        except OSError:
            continue  # the process has ended or belongs to another user
        if inside and command:
            found.append(f"{process.name} {command[:100]}")
    return found


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def require(holds: object, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def first_line(said: str, start: str) -> str:
    """Return the first line that starts with `start`."""
    found: Sequence[str] = [line for line in said.splitlines() if line.startswith(start)]
    require(found, f"no line begins with {start!r} in:\n{said}")
    return found[0]


def always() -> None:
    """Return no reason: the case runs on every machine."""


@attrs.frozen
class Case:
    """`why_not` returns the reason why this machine cannot run the case, or None."""

    name: str
    what: str
    run: Callable[[Room], None]
    why_not: Callable[[], str | None] = always
