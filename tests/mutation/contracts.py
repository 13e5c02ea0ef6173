"""Mutation testing of the contracts: small faults put into the sources one by one, and whether the tests notice.

    python -m tests.mutation.contracts [--files Escrow,Quotes] [--sample 40 --seed 1] [--limit-minutes 30]

Each mutant is compiled and tested in a copy of the contracts' folder, so that the sources are never touched; outcomes
are kept in build/mutants.json and not asked for again while neither source nor tests change. Exits with 1 when fewer
than 95 % of the mutants that compile are killed, those that `common/contracts/mutants.md` explains not counted.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[2]
CONTRACTS: Final = ROOT / "common" / "contracts"
RECORD: Final = ROOT / "build" / "mutants.json"
EXPLAINED: Final = CONTRACTS / "mutants.md"
WORK: Final = ROOT / "build" / "mutation"
# The token of tests and its proxy are no part of a market.
FILES: Final = ("JobRegistry", "Escrow", "Catalogue", "ProviderRegistry", "AskRegistry", "JobWord", "Quotes", "Relayed")
LEAST_KILLED: Final = 0.95
# Fewer runs than `make contracts-test`: a mutant that only long fuzzing finds counts as one that is not found.
PATIENCE: Final = 3600.0  # seconds for one mutant; the first compilation of all tests takes minutes
FORGE_SETTINGS: Final = {"FOUNDRY_FUZZ_RUNS": "32", "FOUNDRY_INVARIANT_RUNS": "6", "FOUNDRY_INVARIANT_DEPTH": "40"}

_SWAPS: Final = (
    (r"(?<![<>=!])<(?![<=])", "<="),
    (r"(?<![<>=!-])>(?![>=])", ">="),
    (r"<=", "<"),
    (r">=", ">"),
    (r"==", "!="),
    (r"!=", "=="),
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r"(?<=[\w)\]] )\+(?= )", "-"),
    (r"(?<=[\w)\]] )-(?= )", "+"),
    (r"(?<=[\w)\]] )\*(?= )", "/"),
    (r"(?<=[\w)\]] )/(?= )", "*"),
    (r"\+=", "-="),
    (r"-=", "+="),
    (r"\+\+(?=[\w])", "--"),
    (r"--(?=[\w])", "++"),
    (r"(?<=[(\s])!(?=[\w])", ""),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\bonlyOwner\b", ""),
    (r"\bnonReentrant\b", ""),
    (r"\bwhenNotPaused\b", ""),
    (r"\bknown\(providerId\)", ""),
    (r"\bMath\.min\b", "Math.max"),
    (r"\bMath\.max\b", "Math.min"),
)
_NUMBER: Final = re.compile(r"(?<![\w.])(\d[\d_]*)(?![\w.])")
_STATEMENT: Final = re.compile(
    r"^\s+(?!return\b|uint|bytes|bool|address|string|mapping|using|error|event|import|\}).*;\s*$"
)
_SKIPPED: Final = re.compile(
    r"^\s*(//|///|\*|import|pragma|event|error|using|contract|abstract|library|interface|type )|TYPEHASH"
)


@attrs.frozen
class Mutant:
    file: str
    line: int
    before: str
    after: str

    @property
    def key(self) -> str:
        return f"{self.file}:{self.line}: {self.before.strip()} -> {self.after.strip() or '(nothing)'}"


def mutants_of(file: str) -> Iterator[Mutant]:
    lines = (CONTRACTS / "src" / f"{file}.sol").read_text().split("\n")
    for number, line in enumerate(lines, 1):
        code = line.split(" //")[0]
        if not code.strip() or _SKIPPED.match(code):
            continue
        seen = {code}
        for pattern, replacement in _SWAPS:
            for found in re.finditer(pattern, code):
                yield from _new(file, number, code, code[: found.start()] + replacement + code[found.end() :], seen)
        for found in _NUMBER.finditer(code):
            more = str(int(found[1].replace("_", "")) + 1)
            yield from _new(file, number, code, code[: found.start(1)] + more + code[found.end(1) :], seen)
        if _STATEMENT.match(code) and code.count("(") == code.count(")"):
            yield from _new(file, number, code, "", seen)


def _new(file: str, number: int, before: str, after: str, seen: set[str]) -> Iterator[Mutant]:
    if after not in seen:
        seen.add(after)
        yield Mutant(file, number, before, after)


class Bench:
    """A copy of the folder in which mutants are tried."""

    def __init__(self) -> None:
        WORK.mkdir(parents=True, exist_ok=True)
        self.folder = WORK / "common" / "contracts"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("src", "test", "foundry.toml", "solc-shim", "package.json"):
            self._copy(CONTRACTS / name, self.folder / name)
        for link, target in (
            (self.folder / "node_modules", CONTRACTS / "node_modules"),
            (WORK / "tests", ROOT / "tests"),
        ):
            if not link.exists():
                link.symlink_to(target)
        [self.forge] = CONTRACTS.glob("node_modules/@foundry-rs/forge-*/bin/forge")

    def _copy(self, source: Path, target: Path) -> None:
        # Files that are the same keep their time, and with it what forge has compiled of them.
        if source.is_dir():
            target.mkdir(exist_ok=True)
            for inner in source.iterdir():
                self._copy(inner, target / inner.name)
        elif not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copy(source, target)

    def outcome(self, mutant: Mutant | None) -> str:
        """killed, survived or invalid; of no mutant: survived, when all is well."""
        if mutant is None:
            return self._tested()
        path = self.folder / "src" / f"{mutant.file}.sol"
        original = path.read_text()
        lines = original.split("\n")
        lines[mutant.line - 1] = mutant.after
        path.write_text("\n".join(lines))
        try:
            return self._tested()
        finally:
            path.write_text(original)

    def _tested(self) -> str:
        environment = {**os.environ, **FORGE_SETTINGS, "HOME": str(ROOT / "build" / "foundry")}
        command = [str(self.forge), "test", "--fail-fast", "--color", "never"]
        log = WORK / "forge.log"
        with (
            log.open("w") as written,
            subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as forge,
        ):
            try:
                status = forge.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(forge.pid, signal.SIGKILL)  # the compiler, too
                return "killed"  # a loop without end
        if re.search("Compiler run failed|Compilation failed", log.read_text()):
            return "invalid"
        return "survived" if status == 0 else "killed"


def fingerprint() -> str:
    """Of all that an outcome depends on."""
    content = hashlib.sha256()
    for path in sorted([*(CONTRACTS / "src").rglob("*.sol"), *(CONTRACTS / "test").rglob("*.sol")]):
        content.update(path.read_bytes())
    return content.hexdigest()


def explained() -> set[str]:
    """The mutants that the committed list explains: its lines that begin with a dash and a mutant in backticks."""
    if not EXPLAINED.exists():
        return set()
    return set(re.findall(r"^- `(.+?)`$", EXPLAINED.read_text(), re.MULTILINE))


def main() -> int:
    parser = argparse.ArgumentParser(description="mutation testing of the contracts")
    parser.add_argument("--files", default=",".join(FILES))
    parser.add_argument("--sample", type=int, default=0, help="so many mutants, chosen by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-minutes", type=float, default=1e9)
    options = parser.parse_args()
    chosen = [mutant for file in options.files.split(",") for mutant in mutants_of(file)]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))  # noqa: S311
    RECORD.parent.mkdir(exist_ok=True)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    print_now = fingerprint()
    outcomes: dict[str, str] = record["outcomes"] if record.get("of") == print_now else {}
    bench = Bench()
    if bench.outcome(None) != "survived":
        sys.exit("the tests fail without any mutant")
    ends = time.monotonic() + 60 * options.limit_minutes
    for mutant in chosen:
        if mutant.key in outcomes:
            continue
        if time.monotonic() > ends:
            break
        outcomes[mutant.key] = bench.outcome(mutant)
        print(f"{outcomes[mutant.key]:<9}{mutant.key}", flush=True)  # noqa: T201 - a command's output
        RECORD.write_text(json.dumps({"of": print_now, "outcomes": outcomes}, indent=1))
    return verdict({mutant.key: outcomes[mutant.key] for mutant in chosen if mutant.key in outcomes}, len(chosen))


def verdict(outcomes: dict[str, str], wanted: int) -> int:
    known = explained()
    unexplained = [key for key, outcome in outcomes.items() if outcome == "survived" and key not in known]
    count = Counter(outcomes.values())
    excused = count["survived"] - len(unexplained)
    counted = count["killed"] + len(unexplained)
    rate = count["killed"] / counted if counted else 0.0
    print(  # noqa: T201
        f"{len(outcomes)} of {wanted} mutants tried: {count['killed']} killed, {count['survived']} survived"
        f" ({excused} explained), {count['invalid']} do not compile; {rate:.1%} killed"
    )
    for key in unexplained:
        print(f"unexplained: {key}")  # noqa: T201
    return 0 if rate >= LEAST_KILLED else 1


if __name__ == "__main__":
    sys.exit(main())
