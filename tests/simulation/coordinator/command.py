"""Simulate complete coordinators with svcd and clients, once per seed. Exit with 1 when a promise broke.

    python -m tests.simulation.coordinator [--seeds 200] [--first 0] [--until-found] [--processes 2]
    python -m tests.simulation.coordinator --seed 17 [--trace]
    python -m tests.simulation.coordinator --plan - < plan

A failing seed is shrunk, and printed as a plan to paste into `tests/simulation/test_coordinator.py`.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.simulation.coordinator.clocks import real_monotonic
from tests.simulation.coordinator.ground import Ground, ground
from tests.simulation.coordinator.planning import planned
from tests.simulation.coordinator.run import Outcome, simulate
from tests.simulation.plan import Fault, Kill, Plan, Post
from tests.simulation.shrinking import kinds_of, shrunk

_SHRINKING_RUNS: Final = 120  # of several seconds each

_standing = ExitStack()
_grounds: list[Ground] = []


def main() -> None:
    options = _options(sys.argv[1:])
    if options.seed is None and options.plan is None:
        sys.exit(_many(range(options.first, options.first + options.seeds), options))
    with tempfile.TemporaryDirectory() as folder, ground(Path(folder)) as standing:
        outcome = simulate(_plan(options), standing)
        if options.trace:
            print("\n".join(outcome.lines))
        print(outcome.plan, _summary(outcome), *outcome.broken, sep="\n", flush=True)
        if outcome.broken and not options.unshrunk:
            print(_shortened(outcome, standing))
    sys.exit(bool(outcome.broken))


def _plan(options: argparse.Namespace) -> Plan:
    if options.plan is None:
        return planned(options.seed)
    names = {"Plan": Plan, "Post": Post, "Kill": Kill, "Fault": Fault}
    plan = eval(sys.stdin.read(), names)  # noqa: S307 - what this program itself prints
    assert isinstance(plan, Plan)
    return plan


def _many(seeds: range, options: argparse.Namespace) -> bool:
    began, virtual, jobs, opened, lives, faults, failed, ran = real_monotonic(), 0.0, 0, 0, 0, 0, 0, 0
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        multiprocessing.get_context("spawn").Pool(options.processes, _stand, (folder,)) as pool,
    ):
        for outcome in pool.imap(_seed, seeds):
            ran += 1
            virtual, jobs, lives = virtual + outcome.seconds, jobs + outcome.jobs, lives + outcome.lives
            opened, faults = opened + outcome.opened, faults + outcome.faults
            if options.trace:
                print(_summary(outcome), flush=True)
            if outcome.broken:
                failed += 1
                _told(outcome)
                if not (options.until_found or options.unshrunk):
                    print(pool.apply(_shortened, (outcome,)), flush=True)
                if options.until_found:
                    break
    minutes = (real_monotonic() - began) / 60
    hours = virtual / 3600
    print(
        f"{ran} seeds, {failed} failed; {jobs} jobs ({opened} opened), {lives} lives, {faults} faults,"
        f" {hours:.1f} virtual hours;"
        f" {ran / minutes:.0f} seeds and {hours / minutes:.2f} virtual hours a minute"
    )
    return bool(failed)


def _stand(folder: str) -> None:
    """Start a chain and a database for the life of a worker."""
    own = Path(folder, str(os.getpid()))
    own.mkdir()
    _grounds.append(_standing.enter_context(ground(own)))


def _seed(seed: int) -> Outcome:
    return simulate(planned(seed), _grounds[0])


def _told(outcome: Outcome) -> None:
    print(f"seed {outcome.plan.seed} breaks what a coordinator promises:")
    print("\n".join(f"  {found}" for found in outcome.broken), flush=True)


def _shortened(outcome: Outcome, given: Ground | None = None) -> str:
    """Return the shortest plan found that fails in the same way, ignoring job numbers."""
    wanted = kinds_of(outcome.broken)
    standing = given or _grounds[0]
    short = shrunk(
        outcome.plan,
        lambda plan: bool(wanted & kinds_of(simulate(plan, standing).broken)),
        _SHRINKING_RUNS,
    )
    broken = simulate(short, standing).broken
    return "\n".join(
        [f"the same, shrunk from {outcome.plan.parts} parts to {short.parts}:", str(short), *(f"  {b}" for b in broken)]
    )


def _summary(outcome: Outcome) -> str:
    return (
        f"seed {outcome.plan.seed}: {outcome.jobs} jobs ({outcome.opened} opened), {outcome.lives} lives,"
        f" {outcome.faults} faults,"
        f" {outcome.statements} statements, {outcome.seconds:.0f} virtual seconds; trace {outcome.trace};"
        f" {len(outcome.broken)} promises broken"
    )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.coordinator")
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--until-found", action="store_true", help="end at the first that fails, unshrunk")
    parser.add_argument("--unshrunk", action="store_true", help="do not look for shorter plans that fail alike")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="seeds at a time")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--plan", help="-: the plan that is read from standard input")
    parser.add_argument("--trace", action="store_true", help="all that happened, or of many the digest of each")
    return parser.parse_args(arguments)
