"""Check the installation: locks, wheel, other systems, the pages on installing, and unusual environments.

    python -m tests.install [NAME ...]

Without names, all parts run one after another. `python -m tests.install.environments NAME ...` chooses environments.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final

from tests.install import locks, wheel
from tests.support.requirements import ROOT, require


def _pytest(*arguments: str, **variables: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode == 0


def _portability() -> bool:
    """Run svc's unit tests without the modules, flags and calls that Windows and macOS lack."""
    tests = ("-n", "2", "-p", "tests.install.portability.other_platform", "tests/install/portability", "tests/unit/svc")
    return all(_pytest(*tests, SVC_PLATFORM=platform) for platform in ("win32", "darwin"))


def _environments() -> bool:
    command = [sys.executable, "-m", "tests.install.environments"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


PARTS: Final[Mapping[str, Callable[[], bool]]] = {
    "locks": lambda: locks.main() == 0,
    "wheel": lambda: wheel.main() == 0,
    "portability": _portability,
    "pages": lambda: _pytest("tests/integration/test_install_pages.py", INSTALL_CHECK="1"),
    "environments": _environments,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.install")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PARTS))
    names = parser.parse_args().names or list(PARTS)
    if unknown := set(names) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    require()
    results = {name: PARTS[name]() for name in names}
    for name, held in results.items():
        print(f"{name}: {'holds' if held else 'FAILED'}")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
