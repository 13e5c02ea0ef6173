"""Simulate a complete provider: many seeds, deterministic runs, and planted faults in svcd that must be found."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.plan import Fault, Kill, Plan, Post, planned
from tests.simulation.planted.__main__ import found, names
from tests.simulation.provider import simulate
from tests.simulation.shrinking import shrunk

ROOT: Final = Path(__file__).parents[2]
BUSY: Final = 8  # has several lives, and faults of most kinds

# Shrunk plans of seeds that once failed.
PLANS: Final = {
    "a settled job that a trailing index still offers": Plan(
        seed=119,
        noisy=246.4,
        posts=(
            Post(at=133.7, window=120, length=20),
            Post(at=151.2, is_bid=True, length=800),
            Post(at=217.6, window=120, length=3500),
        ),
        faults=(Fault(at=185.6, place="poll", kind="hang", seconds=32.2), Fault(245.4, "index", "for a time", 39.7)),
    ),
}


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_provider_keeps_promises_under_plans_of_ten_seeds(first: int) -> None:
    _hold(range(first, first + 10))


@pytest.mark.long
def test_provider_keeps_promises_under_fresh_seeds() -> None:
    first = random.SystemRandom().randrange(1000, 10**9)
    _hold(range(first, first + 100))


def _hold(seeds: range) -> None:
    outcomes = [simulate(planned(seed)) for seed in seeds]
    broken = {one.plan.seed: one.broken for one in outcomes if one.broken}
    assert broken == {}, "make simulate SEED=… shrinks each"
    # Guard against runs in which nothing happens.
    assert sum(one.jobs for one in outcomes) > 2 * len(seeds)
    assert sum(one.lives for one in outcomes) > len(seeds)
    assert sum(one.faults for one in outcomes) > 2 * len(seeds)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_plan_that_broke_a_promise_once_breaks_none(plan: Plan) -> None:
    assert simulate(plan).broken == ()


def test_same_seed_gives_the_same_trace_in_every_process() -> None:
    program = (
        "from tests.simulation.plan import planned; from tests.simulation.provider import simulate;"
        f"print(simulate(planned({BUSY})).trace)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout.strip() == simulate(planned(BUSY)).trace


def test_planted_fault_is_found() -> None:
    """The fault writes a journal entry after its claim. The first seeds meet it."""
    said = found("entry_after_the_claim")
    assert said is not None
    assert "before the journal says so" in said


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in names() if "/" not in name and name != "entry_after_the_claim"])
def test_every_planted_fault_is_found(name: str) -> None:
    assert found(name) is not None


def test_shrunk_plan_has_only_the_parts_that_it_fails_by() -> None:
    kill = Kill(at=40.0, step=3)
    fault = Fault(at=30.0, place="settle", kind="lost")
    plan = planned(BUSY)
    whole = Plan(plan.seed, plan.noisy, plan.posts, (*plan.kills, kill), (*plan.faults, fault))
    short = shrunk(
        whole, lambda one: kill.step in {k.step for k in one.kills} and "lost" in {f.kind for f in one.faults}
    )
    assert (len(short.posts), len(short.kills), len(short.faults)) == (0, 1, 1)
    assert short.noisy < plan.noisy
    assert eval(str(short), {"Plan": Plan, "Post": Post, "Kill": Kill, "Fault": Fault}) == short  # noqa: S307
