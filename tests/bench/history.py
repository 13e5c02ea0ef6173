"""What was measured, kept: the last run as one document, and every run as a line of a file that only grows."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import attrs

from tests.bench.row import Row


@attrs.frozen
class Run:
    measured_at: float
    commit: str  # "" outside of a repository; "+" behind it: with changes that are not committed
    rows: tuple[Row, ...]


def this_run(rows: list[Row]) -> Run:
    return Run(time.time(), _commit(), tuple(rows))


def keep(run: Run, latest: Path, history: Path) -> None:
    latest.parent.mkdir(parents=True, exist_ok=True)
    latest.write_text(json.dumps(attrs.asdict(run), indent=1) + "\n", encoding="utf-8")
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(attrs.asdict(run)) + "\n")


def runs_of(history: Path) -> list[Run]:
    """Oldest first. A line that a killed run left half written is passed over."""
    if not history.exists():
        return []
    runs = []
    for line in history.read_text(encoding="utf-8").splitlines():
        try:
            run: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        runs.append(Run(run["measured_at"], run["commit"], tuple(Row(**row) for row in run["rows"])))
    return runs


def _commit() -> str:
    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    commit = git("rev-parse", "--short", "HEAD")
    return commit + ("+" if commit and git("status", "--porcelain") else "")
