"""Store measurements: the last run as one document, and every run as a line of an append-only file."""

import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.bench.machine import Bare, Measured
from tests.bench.row import Row


@attrs.frozen
class Run:
    measured_at: float
    commit: str  # "" outside a repository; a "+" marks uncommitted changes
    rows: tuple[Row, ...]
    seconds: float = 0  # duration; 0 if not recorded
    measured: tuple[Measured, ...] = ()  # of each benchmark; empty if not recorded


def this_run(rows: list[Row], seconds: float, measured: Sequence[Measured]) -> Run:
    return Run(time.time(), _commit(), tuple(rows), seconds, tuple(measured))


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
        rows = tuple(_row(row) for row in run["rows"])
        measured = tuple(Measured(**one | {"bare": Bare(**one["bare"])}) for one in run.get("measured", ()))
        runs.append(Run(run["measured_at"], run["commit"], rows, run.get("seconds", 0), measured))
    return runs


def _row(kept: dict[str, Any]) -> Row:
    """Rows of old runs may be single measurements without quartiles. Use the ratio itself instead."""
    alone = {"n": 1, "low": kept["ratio"], "high": kept["ratio"]}
    return Row(**alone | {name: value for name, value in kept.items() if value is not None})


def same(row: Row) -> tuple[str, str]:
    """Return the key of a figure. Measured values in a name ("hello: × 2.15") are removed, so the key is the same in
    each run."""
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
    lines[0] += f" beside {len(before)} before it, × against"
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
