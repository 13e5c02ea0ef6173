"""Install a check's requirements by the Makefile's rules, so that `python -m tests.NAME` works in a fresh checkout."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CONTRACTS: Final = "common/contracts/node_modules/.ready"
_VENV: Final = ROOT / ".venv"


def require(*targets: str) -> None:
    """Make the targets, and put the chosen node into PATH. Exit where a target fails; make prints the reason."""
    if not made("setup", *targets):
        sys.exit(1)
    if (_VENV / ".node").read_text().strip() == "wheel":
        os.environ["PATH"] = os.pathsep.join((str(_VENV / "bin"), os.environ["PATH"]))


def made(*targets: str) -> bool:
    """Return whether make could make the targets. An outer make's flags and job server are not inherited."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--silent", "--no-print-directory", *targets]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def npm(*folders: str) -> list[str]:
    """Return the targets that install these folders' npm packages."""
    return [f"tests/{folder}/node_modules/.ready" for folder in folders]
