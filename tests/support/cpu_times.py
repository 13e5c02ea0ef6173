"""Measure the CPU seconds of each test, including its child processes, and print a table.

    python -m tests.support.cpu_times [ARGUMENTS OF PYTEST ...]

Without arguments, measures the tests of `make test`, one after another.

Wall-clock seconds depend on the machine's other load. A worker's shared services (chain, database) count for the test
that runs at the time. A process that outlives its test counts where it ends or keeps running. A process that detaches
itself is not counted.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

FOLDER: Final = Path(__file__).parents[2] / "build" / "cpu-times"
_TICK: Final = os.sysconf("SC_CLK_TCK")


def cpu_of(*pids: int) -> list[float]:
    """Return the CPU seconds of each process, its living descendants, and the descendants that it waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process just ended, so the next look finds its time at the parent
                continue
            parents[int(entry.name)] = int(fields[1])
            # user and system time, of the process and its children
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    spent = []
    for pid in pids:
        family = {pid}
        while more := {each for each, parent in parents.items() if parent in family} - family:
            family |= more
        spent.append(sum(ticks.get(each, 0) for each in family) / _TICK)
    return spent


def used() -> float:
    """Return the CPU seconds of this process and all its descendants."""
    return cpu_of(os.getpid())[0]


@attrs.define(eq=False)
class CpuTimes:
    """`fixtures`: the set-up time of each shared fixture, with the first test that used it."""

    out: Path
    fixtures: dict[str, float] = attrs.field(factory=dict)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = used()
        try:
            return (yield)
        finally:
            self.fixtures[fixturedef.argname] = used() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.fixtures = {}
        before = used()
        try:
            return (yield)
        finally:
            row = {"test": item.nodeid, "cpu": used() - before, "fixtures": self.fixtures}
            with self.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    config.pluginmanager.register(CpuTimes(FOLDER / f"{worker}.jsonl"))


def table(rows: Sequence[Mapping[str, Any]], lines: int = 60) -> Iterator[str]:
    """Yield folders, files, tests and shared fixtures, in descending order of time."""
    costs: dict[str, defaultdict[str, float]] = {
        name: defaultdict(float) for name in ("folders", "files", "tests", "fixtures")
    }
    for row in rows:
        file = str(row["test"]).partition("::")[0]
        costs["folders"]["/".join(Path(file).parts[1:-1][:3])] += row["cpu"]
        costs["files"][file] += row["cpu"]
        costs["tests"][row["test"]] += row["cpu"]
        for fixture, seconds in row["fixtures"].items():
            costs["fixtures"][fixture] += seconds
    yield f"{sum(row['cpu'] for row in rows) / 60:.1f} CPU minutes, {len(rows)} tests"
    for title, cost in costs.items():
        yield f"\n{title}, CPU seconds"
        for name, seconds in sorted(cost.items(), key=lambda entry: -entry[1])[:lines]:
            yield f"{seconds:8.1f}  {name}"


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.cpu_times",
        *(sys.argv[1:] or ["-m", "not long"]),
    ]
    subprocess.run(command, cwd=FOLDER.parents[1], check=False)
    read = [json.loads(line) for file in sorted(FOLDER.glob("*.jsonl")) for line in file.read_text().splitlines()]
    sys.stdout.write("\n".join(table(read)) + "\n")


if __name__ == "__main__":
    main()
