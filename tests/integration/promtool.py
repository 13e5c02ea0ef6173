"""Prometheus' own checker, where there is one: `make promtool` fetches it."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMTOOL = next(
    (path for path in (ROOT / "build/promtool", shutil.which("promtool")) if path and Path(path).exists()), None
)


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Its complaints: nothing when all is well."""
    done = subprocess.run([str(PROMTOOL), *arguments], input=stdin, capture_output=True, check=False, timeout=60)
    return "" if done.returncode == 0 and not done.stderr.strip() else (done.stdout + done.stderr).decode()
