"""promtool, if `make programs` has fetched it."""

import subprocess
from pathlib import Path

from tests.support.programs.found import program

PROMTOOL = program("promtool")


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Return promtool's complaints. Empty if all is well."""
    done = subprocess.run([str(PROMTOOL), *arguments], input=stdin, capture_output=True, check=False, timeout=180)
    return "" if done.returncode == 0 and not done.stderr.strip() else (done.stdout + done.stderr).decode()
