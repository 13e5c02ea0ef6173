"""Store measurements: the last run as one document, and every run as a line of an append-only file."""

import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.bench.row import Row


@attrs.frozen
class Run:
    measured_at: float
    commit: str  # "" outside a repository; a "+" marks uncommitted changes
    rows: tuple[Row, ...]
    seconds: float = 0


def this_run(rows: Sequence[Row], seconds: float) -> Run:
    return Run(time.time(), _commit(), tuple(rows), seconds)


def keep(run: Run, latest: Path, history: Path) -> None:
    latest.parent.mkdir(parents=True, exist_ok=True)
    latest.write_text(json.dumps(attrs.asdict(run), indent=1) + "\n", encoding="utf-8")
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(attrs.asdict(run)) + "\n")


def runs_of(history: Path) -> list[Run]:
    """Return runs, oldest first. Skip a line that a killed run left incomplete."""
    if not history.exists():
        return []
    runs = []
    for line in history.read_text(encoding="utf-8").splitlines():
        try:
            run: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        rows = tuple(map(_row, run["rows"]))
        runs.append(Run(run["measured_at"], run["commit"], rows, run.get("seconds", 0)))
    return runs


def _row(kept: Mapping[str, Any]) -> Row:
    """Rows of earlier releases may have other fields as well."""
    return Row(**{field.name: kept[field.name] for field in attrs.fields(Row)})


def same(row: Row) -> tuple[str, str]:
    """Return the key of a figure. Measured values in parentheses are removed, so the key is the same in each run."""
    return row.name, row.against.partition(" (")[0]


def trend(runs: Sequence[Run], shown: int = 6) -> str:
    """Return the last ratios of each figure of the latest run, oldest first, and the change of the latest."""
    if not runs:
        return "no run is kept yet"
    latest, *before = reversed(runs)
    earlier: dict[tuple[str, str], list[Row]] = {}
    for run in before:
        for row in run.rows:
            earlier.setdefault(same(row), []).append(row)
    lines = [f"history: the run of {_day(latest)} ({latest.commit or 'no commit'}, {latest.seconds:.0f} s)"]
    lines[0] += f" after {len(before)} others, ratios"
    for row in latest.rows:
        past = [each.ratio for each in earlier.get(same(row), [])[: shown - 1]]
        ratios = " ".join(f"{ratio:6.2f}" for ratio in [*reversed(past), row.ratio])
        lines.append(f"{ratios:>{7 * shown - 1}}  {_turn(row.ratio, past):>6}  {row.name} — {same(row)[1]}")
    return "\n".join(lines)


def _turn(ratio: float, past: Sequence[float]) -> str:
    """Return the change in percent of the median of earlier runs."""
    usual = statistics.median(past) if past else 0
    return f"{100 * (ratio / usual - 1):+.0f} %" if usual else "new"


def _day(run: Run) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.measured_at))


def _commit() -> str:
    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return ""

    commit = git("rev-parse", "--short", "HEAD")
    return commit + ("+" if commit and git("status", "--porcelain") else "")
