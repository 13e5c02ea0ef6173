"""Checks that every locked package has a wheel for every Python and platform that its lock is for.

    python -m tests.install.locks

uv asks the registry for the names of the wheels and downloads none. A package without a wheel is allowed where
`NO_WHEEL` lists it. An entry of `NO_WHEEL` that has a wheel by now fails.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PARALLEL_REQUESTS: Final = 4
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.15")
LINUX: Final = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
LINUX_X86: Final = LINUX[:1]
EVERYWHERE: Final = (*LINUX, "aarch64-apple-darwin", "x86_64-pc-windows-msvc")
LOCKS: Final = {
    "client": EVERYWHERE,
    "serve": EVERYWHERE,
    "tracing": EVERYWHERE,
    "provider": LINUX,
    "coordinator": LINUX,
    "market": LINUX,
    "dev": LINUX,
    "node": LINUX,
    "slither": LINUX,
    "halmos": LINUX_X86,
    "peers": LINUX_X86,
    "serve-clients": LINUX_X86,
    "docs": LINUX,
    "model": LINUX,
    "openapi": LINUX_X86,
    "fuzz": LINUX_X86,
}
# (package, Python): the replacement of the wheel.
NO_WHEEL: Final = {
    ("ckzg", "3.15"): "web3 brings it: devnet, `coordinatord market` and slither need a C compiler",
    ("orjson", "3.15"): "its wheel needs glibc 2.39: `python -m tests.peers.clients` needs a newer Linux",
    ("zstandard", "3.15"): "`python -m tests.peers.clients` needs a C compiler",
    ("atheris", "3.14"): "`make fuzz` needs Python 3.11 to 3.13",
    ("atheris", "3.15"): "`make fuzz` needs Python 3.11 to 3.13",
}


def blocks(lock: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the lines of each locked package."""
    for block in re.split(r"^(?=[a-z0-9])", lock.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if name := re.match(r"([a-z0-9._-]+)==", block):
            yield name[1], block


def refusal(requirements: Iterable[str], python: str, platform: str) -> str | None:
    """Return uv's message about packages without a wheel, or None if each has one."""
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "requirements.txt"
        listed.write_text("".join(requirements), encoding="utf-8")
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--no-build"]
        where = ["--target", f"{folder}/none", "--python-version", python, "--python-platform", platform]
        done = subprocess.run([*command, *where, "-r", listed], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else None


def faults(lock: str, python: str, platform: str) -> list[str]:
    packages = list(blocks(ROOT / "config" / f"requirements-{lock}.lock"))
    said = refusal((block for name, block in packages if (name, python) not in NO_WHEEL), python, platform)
    found = [] if said is None else [f"requirements-{lock}.lock, Python {python}, {platform}: {said}"]
    return found + [
        f"{name} has a wheel for Python {python} by now: remove it from NO_WHEEL"
        for name, block in packages
        if (name, python) in NO_WHEEL and refusal([block], python, platform) is None
    ]


def main() -> int:
    asked = [(lock, python, where) for lock, platforms in LOCKS.items() for python in PYTHONS for where in platforms]
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        found = [fault for some in pool.map(lambda one: faults(*one), asked) for fault in some]
    for fault in found:
        print(fault, file=sys.stderr)
    if not found:
        print(
            f"locks: every package has a wheel for Python {PYTHONS[0]} to {PYTHONS[-1]}, but for {len(NO_WHEEL)} known"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
