"""Complete coordinators with svcd and clients: one plan has the same trace in every process, sixteen seeds pass,
and the simulation finds faults planted in coordinatord.

`python -m tests.simulation.coordinator` runs more seeds and shrinks one that fails; add its plan below as a separate
test. `python -m tests.simulation.planted` plants faults. Each simulation runs in a separate process because it replaces
the clocks before coordinatord is imported.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.plan import OF_SVCD, Fault, Kill, Plan, Post
from tests.simulation.planted.__main__ import found, names

ROOT: Final = Path(__file__).parents[2]
_SUMMARY: Final = re.compile(
    r"seed \d+: (\d+) jobs \((\d+) opened\), (\d+) lives, (\d+) faults, .* trace [0-9a-f]{16}; (\d+) promises"
)

# Two coordinators, with a crash of one and of svcd. An order, a batch, and two clients that buy from svcd, once by an
# open bid. A node forgets bytes, and a reorg occurs.
SHORT: Final = Plan(
    seed=7,
    noisy=20.0,
    posts=(
        Post(1.0, 60, length=20),
        Post(2.0, 300, length=20, lines=2),
        Post(3.0, 300, length=3500, sealed=True),
        Post(4.0, 300, length=20, is_bid=True, sealed=True),
    ),
    kills=(Kill(at=7.0, step=40), Kill(at=14.0, step=2, how="power cut", of=OF_SVCD)),
    faults=(Fault(4.0, "send", "forgotten"), Fault(16.0, "reorg", "some", 3.0)),
    coordinators=2,
)


def simulated(*arguments: str, hashes: str = "0", plan: Plan | None = None) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.coordinator", "--processes", "1", "--trace", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hashes},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("" if plan is None else str(plan))
    process.stdin.close()
    process.stdin = None
    return process


def ended(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=900)
    assert process.returncode == 0, said[-4000:]
    return said


@pytest.mark.long
def test_same_plan_gives_the_same_trace_in_every_process() -> None:
    """Compare full traces, down to each statement and its result."""
    runs = [simulated("--plan", "-", hashes=hashes, plan=SHORT) for hashes in ("1", "2")]
    one, other = map(ended, runs)
    assert one == other
    assert "power cut at: " in one
    found = _SUMMARY.search(one)
    assert found is not None, one[-2000:]
    assert tuple(map(int, found.groups())) == (3, 2, 5, 3, 0)  # counts jobs of svcd that both clients opened


@pytest.mark.long
@pytest.mark.timeout(3700)
@pytest.mark.parametrize("name", [name for name in names() if name.startswith("coordinator/")])
def test_every_planted_fault_is_found(name: str) -> None:
    assert found(name) is not None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("quarter", range(4))
def test_coordinators_keep_promises_under_four_seeds(quarter: int) -> None:
    """Fixed seeds by default. SIMULATE_FIRST sets the first seed."""
    first = int(os.environ.get("SIMULATE_FIRST", "968117281")) + 4 * quarter
    said = ended(simulated("--first", str(first), "--seeds", "4", "--unshrunk"))
    summaries = _SUMMARY.findall(said)
    assert len(summaries) == 4
    # Guard against runs in which nothing happens.
    jobs, opened, lives, faults, _ = (sum(map(int, each)) for each in zip(*summaries, strict=True))
    assert jobs > 10
    assert opened > 2
    assert lives > 6
    assert faults > 15
