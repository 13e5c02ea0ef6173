"""Mutation testing of the contracts: put one small fault at a time into the sources, and check that a test fails.

    python -m tests.mutation.contracts [--files Escrow,Quotes] [--sample 40 --seed 1] [--limit-minutes 30]

Outcomes are kept in build/mutants.json. A kill is valid until the sources or the killing test change, a survivor until
any test changes. Exits with 1 when fewer than 95 % of the mutants that compile are killed, not counting those that
`common/contracts/mutants.txt` explains.
"""

import argparse
import json
import random
import re
import sys
import time
from collections import Counter
from typing import Final

from tests.mutation.bench import CONTRACTS, ROOT, Bench, Compiler, Outcome, digest
from tests.mutation.mutants import Mutant, mutants_of

RECORD: Final = ROOT / "build" / "mutants.json"
EXPLAINED: Final = CONTRACTS / "mutants.txt"
# Test tokens are not part of a market.
FILES: Final = (
    "JobRegistry",
    "Escrow",
    "Catalogue",
    "ProviderRegistry",
    "AskRegistry",
    "JobWord",
    "Quotes",
    "Relayed",
    "Signatures",
)
LEAST_KILLED: Final = 0.95
_SHARED: Final = ("Check.sol", "World.sol", "Market.sol")


class Record:
    """Outcomes of earlier runs, by mutant name."""

    def __init__(self) -> None:
        self._sources = digest(*(CONTRACTS / "src").rglob("*.sol"))
        self._tests = digest(*(CONTRACTS / "test").glob("*.sol"))
        self._kept: dict[str, list[str]] = {}
        self._killers: dict[str, Counter[str]] = {}
        if RECORD.exists():
            self._kept = json.loads(RECORD.read_text())
        for key, (name, by, of) in self._kept.items():
            if name == "killed" and of.startswith(self._sources):
                self._count(key, by)

    def known(self, mutant: Mutant) -> Outcome | None:
        name, by, of = self._kept.get(mutant.key, ("", "", ""))
        return Outcome(name, by) if name and of == self._of(name, by) else None

    def keep(self, mutant: Mutant, outcome: Outcome) -> None:
        self._kept[mutant.key] = [outcome.name, outcome.by, self._of(outcome.name, outcome.by)]
        if outcome.name == "killed":
            self._count(mutant.key, outcome.by)
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(self._kept, indent=1))

    def killers(self, mutant: Mutant) -> list[str]:
        """Return the tests that killed most mutants of the mutant's file, best first."""
        return [name for name, _ in self._killers.get(mutant.file, Counter()).most_common()]

    def _count(self, key: str, by: str) -> None:
        test = by.rsplit(":", 1)[-1]
        if test.startswith(("test", "invariant")):
            self._killers.setdefault(re.split(r"[.:]", key)[0], Counter())[test] += 1

    def _of(self, name: str, by: str) -> str:
        """Return the digest of everything that an outcome depends on."""
        if name in ("invalid", "same"):
            return self._sources
        file = by.split(":", maxsplit=1)[0].removeprefix("test/")
        if name == "survived" or not (CONTRACTS / "test" / file).is_file():
            return f"{self._sources}-{self._tests}"
        return f"{self._sources}-{digest(*(CONTRACTS / 'test' / each for each in {file, *_SHARED}))}"


def explained() -> set[str]:
    """Return the mutants that the committed list explains: lines that start with a dash and a mutant in backticks."""
    return set(re.findall(r"^- `(.+?)`$", EXPLAINED.read_text(), re.MULTILINE)) if EXPLAINED.exists() else set()


def main() -> int:
    parser = argparse.ArgumentParser(description="mutation testing of the contracts")
    parser.add_argument("--files", default=",".join(FILES))
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, chosen by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-minutes", type=float, default=1e9)
    options = parser.parse_args()
    chosen = [mutant for file in options.files.split(",") for mutant in mutants_of(CONTRACTS / "src", file)]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))  # noqa: S311
    record = Record()
    if any(record.known(mutant) is None for mutant in chosen):
        _try(chosen, record, time.monotonic() + 60 * options.limit_minutes)
    outcomes = [(mutant, outcome) for mutant in chosen if (outcome := record.known(mutant))]
    return verdict(outcomes, len(chosen))


def _try(chosen: list[Mutant], record: Record, ends: float) -> None:
    compiler = Compiler()
    try:
        bench = Bench(compiler)
        untouched = bench.untouched()
        if untouched.name != "survived":
            sys.exit(f"without any mutant, this fails already: {untouched.by}")
        for mutant in chosen:
            if record.known(mutant) is not None:
                continue
            if time.monotonic() > ends:
                return
            outcome = bench.outcome(mutant, record.killers(mutant))
            record.keep(mutant, outcome)
            print(f"{outcome.name:<9}{mutant.key}  {outcome.by}", flush=True)  # noqa: T201 - a command's output
    finally:
        compiler.close()


def verdict(outcomes: list[tuple[Mutant, Outcome]], wanted: int) -> int:
    known = explained()
    files = {mutant.file: None for mutant, _ in outcomes}
    titles = ("file", "mutants", "do not compile", "deploy the same", "killed", "explained", "survived", "rate")
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")  # noqa: T201
    for file in files:
        _row(file, [pair for pair in outcomes if pair[0].file == file], known)
    rate = _row("all", outcomes, known)
    if len(outcomes) < wanted:
        print(f"{wanted - len(outcomes)} of {wanted} mutants are not tried yet")  # noqa: T201
    for mutant, outcome in outcomes:
        if outcome.name == "survived" and mutant.key not in known:
            print(f"survived: {mutant.key} (line {mutant.line})")  # noqa: T201
    return 0 if rate >= LEAST_KILLED and len(outcomes) == wanted else 1


def _row(title: str, outcomes: list[tuple[Mutant, Outcome]], known: set[str]) -> float:
    count = Counter(outcome.name for _, outcome in outcomes)
    excused = sum(outcome.name == "survived" and mutant.key in known for mutant, outcome in outcomes)
    survived = count["survived"] - excused
    counted = count["killed"] + survived
    rate = count["killed"] / counted if counted else 1.0
    print(  # noqa: T201
        f"| {title} | {len(outcomes)} | {count['invalid']} | {count['same']} | {count['killed']} | {excused}"
        f" | {survived} | {rate:.1%} |"
    )
    return rate


if __name__ == "__main__":
    sys.exit(main())
