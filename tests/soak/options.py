"""Options of a soak."""

import argparse
import secrets
from collections.abc import Sequence
from pathlib import Path

import attrs

from tests.soak.faults.kinds import KINDS


@attrs.frozen
class Options:
    minutes: float = 5.0
    jobs: int = 0  # of all clients; 0 means as many as fit in the time
    providers: int = 2
    coordinators: int = 2
    seed: int = 1
    faults: tuple[str, ...] = tuple(KINDS)
    fault_every: float = 8.0  # seconds from the end of one fault to the start of the next, on average
    every: float = 0.0  # mean seconds between starts of faults of all services; 0 means `fault_every`
    patience: float = (
        150.0  # seconds, after the last fault, for each: clients, a piece of each kind of work, what rests
    )
    out: Path = Path("build")


def _seed(text: str) -> int:
    return secrets.randbelow(10**9) if text == "random" else int(text)


def read_options(arguments: Sequence[str]) -> Options:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="The whole market under load and faults; then the invariants are checked. `make soak` takes the"
        " same as MINUTES, JOBS, PROVIDERS, COORDINATORS, SEED, FAULTS, EVERY.",
        epilog=f"faults: {', '.join(KINDS)}",
    )
    add = parser.add_argument
    add("--minutes", type=float, default=defaults.minutes, help="how long clients and faults go on (%(default)s)")
    add("--jobs", type=int, default=defaults.jobs, help="jobs at most; 0: as many as fit (%(default)s)")
    add("--providers", type=int, default=defaults.providers, choices=(1, 2, 3), help="svcd processes (%(default)s)")
    add("--coordinators", type=int, default=defaults.coordinators, help="coordinatord processes (%(default)s)")
    add(
        "--seed",
        type=_seed,
        default=defaults.seed,
        help="decides faults, their order and their length; `random`: one"
        " that nobody tried, which is printed and kept in soak.json (%(default)s)",
    )
    add("--faults", default="all", help="kinds, comma-separated; `all`, or `none` for a quiet run (%(default)s)")
    add("--fault-every", type=float, default=defaults.fault_every, help="seconds between faults (%(default)s)")
    add(
        "--every",
        type=float,
        default=defaults.every,
        help="seconds between the starts of two faults, of any services; they are short, and several are in force at a"
        " time; 0: as --fault-every says (%(default)s)",
    )
    add(
        "--patience",
        type=float,
        default=defaults.patience,
        help="seconds for what has to end after the last fault (%(default)s)",
    )
    add("--out", type=Path, default=defaults.out, help="where soak.html and soak.json go (%(default)s)")
    parsed = parser.parse_args(arguments)
    kinds = {"all": tuple(KINDS), "none": ()}.get(parsed.faults, tuple(parsed.faults.split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--faults: {', '.join(unknown)} unknown; there are {', '.join(KINDS)}")
    if parsed.minutes <= 0 or parsed.coordinators < 1 or parsed.every < 0:
        parser.error("--minutes, --coordinators and --every must be positive")
    return Options(
        minutes=parsed.minutes,
        jobs=parsed.jobs,
        providers=parsed.providers,
        coordinators=parsed.coordinators,
        seed=parsed.seed,
        faults=kinds,
        fault_every=parsed.fault_every,
        every=parsed.every,
        patience=parsed.patience,
        out=parsed.out,
    )
