"""`make simulate SEEDS=1000`: simulate a complete provider, once per seed. Exits with 1 when a promise broke.

    python -m tests.simulation [--seeds 1000] [--first 0] [--until-found] [--seed 17 [--trace]]

A failing seed is shrunk, and printed as a plan to paste into `tests/simulation/test_provider.py`.
"""

import argparse
import multiprocessing
import os
import sys
import time

from tests.simulation.plan import planned
from tests.simulation.provider import Outcome, simulate, simulate_seed
from tests.simulation.shrinking import kinds_of, shrunk


def main() -> None:
    options = _options(sys.argv[1:])
    if options.seed is not None:
        outcome = simulate(planned(options.seed))
        print(outcome.plan, _summary(outcome), sep="\n")
        if options.trace:
            print("\n".join(outcome.lines))
        sys.exit(_told(outcome))
    sys.exit(_many(range(options.first, options.first + options.seeds), options.until_found))


def _many(seeds: range, until_found: bool) -> bool:
    began, virtual, jobs, ahead, lives, faults, failed, ran = time.monotonic(), 0.0, 0, 0, 0, 0, 0, 0
    with multiprocessing.get_context("forkserver").Pool(os.cpu_count() or 1) as pool:
        for outcome in pool.imap(simulate_seed, seeds, chunksize=1 if until_found else 4):
            ran += 1
            virtual, jobs, lives = virtual + outcome.seconds, jobs + outcome.jobs, lives + outcome.lives
            ahead, faults = ahead + outcome.ahead, faults + outcome.faults
            if outcome.broken:
                failed += 1
                _told(outcome, shrink=not until_found)
                if until_found:
                    break
    minutes = (time.monotonic() - began) / 60
    hours = virtual / 3600
    print(
        f"{ran} seeds, {failed} failed; {jobs} jobs ({ahead} run ahead), {lives} lives, {faults} faults,"
        f" {hours:.1f} virtual hours; {ran / minutes:.0f} seeds and {hours / minutes:.1f} virtual hours a minute"
    )
    return bool(failed)


def _told(outcome: Outcome, *, shrink: bool = True) -> bool:
    if not outcome.broken:
        return False
    print(f"seed {outcome.plan.seed} breaks what a provider promises:")
    print("\n".join(f"  {found}" for found in outcome.broken), flush=True)
    if not shrink:
        return True
    wanted = kinds_of(outcome.broken)
    short = shrunk(outcome.plan, lambda plan: bool(wanted & kinds_of(simulate(plan).broken)))
    print(f"the same, shrunk from {outcome.plan.parts} parts to {short.parts}:\n{short}")
    print("\n".join(f"  {found}" for found in simulate(short).broken), flush=True)
    return True


def _summary(outcome: Outcome) -> str:
    return (
        f"seed {outcome.plan.seed}: {outcome.jobs} jobs, {outcome.lives} lives, {outcome.faults} faults,"
        f" {outcome.seconds:.0f} virtual seconds; trace {outcome.trace}; {len(outcome.broken)} promises broken"
    )


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--until-found", action="store_true", help="end at the first that fails, unshrunk")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: all that happened")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
