"""Options of a soak."""

import argparse
import math
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from tests.soak.faults.schedule import KINDS

_MAX_ROUND_MINUTES: Final = 20.0


@attrs.frozen
class Options:
    minutes: float = 10.0
    providers: int = 2
    coordinators: int = 2
    seed: int = 1
    faults: tuple[str, ...] = tuple(KINDS)
    fault_every: float = 8.0  # seconds from the end of one fault to the start of the next, on average
    every: float = 0.0  # mean seconds between starts of faults of all services; 0 means `fault_every`
    patience: float = 150.0  # seconds after the last fault of a round: for clients, each kind of work, and all relays
    out: Path = Path("build")

    @property
    def rounds(self) -> int:
        return math.ceil(self.minutes / _MAX_ROUND_MINUTES)

    @property
    def round_minutes(self) -> float:
        return self.minutes / self.rounds

    @property
    def again(self) -> str:
        """Return a command that repeats the run."""
        faults = "all" if self.faults == tuple(KINDS) else ",".join(self.faults) or "none"
        return (
            f"python -m tests.soak --hours {self.minutes / 60:g} --seed {self.seed} --faults {faults}"
            f" --coordinators {self.coordinators} --providers {self.providers} --every {self.every:g}"
            f" --fault-every {self.fault_every:g}"
        )


def _seed(text: str) -> int:
    return secrets.randbelow(10**9) if text == "random" else int(text)


def read_options(arguments: Sequence[str]) -> Options:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Run the whole market under load and faults, in rounds of at most 20 minutes. After each round, all"
        " invariants are checked and the report is written. `make soak` passes HOURS, SEED and FAULTS on.",
        epilog=f"faults: {', '.join(KINDS)}",
    )
    add = parser.add_argument
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--hours", type=float, help="duration of load and faults; the checks of each round come on top")
    time.add_argument("--minutes", type=float, default=defaults.minutes, help="the same in minutes (%(default)s)")
    add("--providers", type=int, default=defaults.providers, choices=(1, 2, 3), help="svcd processes (%(default)s)")
    add("--coordinators", type=int, default=defaults.coordinators, help="coordinatord processes (%(default)s)")
    add(
        "--seed",
        type=_seed,
        default=defaults.seed,
        help="decides faults, their order and their length; `random` chooses one and reports it (%(default)s)",
    )
    add("--faults", default="all", help="kinds, comma-separated; `all`, or `none` for a quiet run (%(default)s)")
    add("--fault-every", type=float, default=defaults.fault_every, help="mean seconds between faults (%(default)s)")
    add(
        "--every",
        type=float,
        default=defaults.every,
        help="mean seconds between the starts of short faults of all services, several at a time; 0 uses --fault-every",
    )
    add(
        "--patience",
        type=float,
        default=defaults.patience,
        help="seconds for what has to end after the last fault of a round (%(default)s)",
    )
    add("--out", type=Path, default=defaults.out, help="folder of soak.html, soak.json and soak-logs (%(default)s)")
    parsed = parser.parse_args(arguments)
    kinds = {"all": tuple(KINDS), "none": ()}.get(parsed.faults, tuple(parsed.faults.split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--faults: {', '.join(unknown)} unknown; there are {', '.join(KINDS)}")
    minutes = parsed.minutes if parsed.hours is None else 60 * parsed.hours
    if minutes <= 0 or parsed.coordinators < 1 or parsed.every < 0:
        parser.error("--hours, --minutes, --coordinators and --every must be positive")
    return Options(
        minutes=minutes,
        providers=parsed.providers,
        coordinators=parsed.coordinators,
        seed=parsed.seed,
        faults=kinds,
        fault_every=parsed.fault_every,
        every=parsed.every,
        patience=parsed.patience,
        out=parsed.out,
    )
