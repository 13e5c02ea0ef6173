"""Mutation testing of Python: put one small fault at a time into a module's functions, and check that a test fails.

    python -m tests.mutation.python [MODULE ...] [--forks 2] [--limit-minutes 30] [--only TEXT] [--list]

`modules.toml` names the modules and their tests. `survivors.toml` explains mutants that are equivalent to the source.
Outcomes are kept in build/mutation/python. A kill is valid until the module or the killing test's file changes, a
survivor until any of its tests changes. An interrupted run therefore continues where it stopped.

Exits with 1 when less than 95 % of a module's unexplained mutants are killed, when an unexplained mutant survives, and
when an explained one is killed or no longer exists.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from tests.mutation.bench import ROOT, digest
from tests.mutation.python.bench import NO_END, SESSION_BROKEN
from tests.mutation.python.mutants import mutants_of

HERE: Final = Path(__file__).parent
RECORDS: Final = ROOT / "build" / "mutation" / "python"
LEAST_KILLED: Final = 0.95
_SESSIONS: Final = 30  # sessions that a module's integration tests may break


@attrs.frozen
class Module:
    path: str
    unit: list[str]
    integration: list[str]

    def tests_of(self, stage: str) -> list[str]:
        return self.unit if stage == "unit" else self.integration


class Record:
    """Outcomes by mutant name: the killing test or "" for none, and the digest of everything that the outcome
    depends on."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.mutants = [mutant.key for mutant in mutants_of(module.path, ROOT / module.path)]
        self._file = RECORDS / (module.path.replace("/", ".") + ".json")
        kept = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._kept: dict[str, dict[str, list[str]]] = kept.get("outcomes", {})
        self.seconds: float = kept.get("seconds", 0.0)
        self._source = digest(ROOT / module.path)
        self._tests = {stage: _digest_of(tuple(module.tests_of(stage))) for stage in ("unit", "integration")}

    def killed_by(self, key: str, stage: str) -> str | None:
        """Return the killing test, "" for none, or None if the mutant has to be tried."""
        by, of = self._kept.get(key, {}).get(stage, ("", ""))
        return by if of == self._of(by, stage) else None

    def killed(self, key: str) -> str | None:
        found = [self.killed_by(key, stage) for stage in ("unit", "integration") if self.module.tests_of(stage)]
        return next((by for by in found if by), None if None in found else "")

    def wanted(self, stage: str) -> list[str]:
        return [key for key in self.mutants if not self.killed(key) and self.killed_by(key, stage) is None]

    def killers(self, stage: str) -> Counter[str]:
        told = (stages[stage][0] for stages in self._kept.values() if stage in stages)
        return Counter(by for by in told if by and by != NO_END)

    def keep(self, key: str, stage: str, by: str) -> None:
        self._kept.setdefault(key, {})[stage] = [by, self._of(by, stage)]

    def save(self) -> None:
        RECORDS.mkdir(parents=True, exist_ok=True)
        kept = {key: self._kept[key] for key in self.mutants if key in self._kept}
        self._file.write_text(json.dumps({"seconds": self.seconds, "outcomes": kept}, indent=1))

    def _of(self, by: str, stage: str) -> str:
        file = by.partition("::")[0]
        return f"{self._source}-{_digest_of((file,)) if '::' in by else self._tests[stage]}"


@functools.cache
def _digest_of(tests: tuple[str, ...]) -> str:
    files = [ROOT / test.partition("::")[0] for test in tests]
    return digest(*(each for file in files for each in ([file] if file.is_file() else file.rglob("*.py"))))


def modules() -> list[Module]:
    table = tomllib.loads((HERE / "modules.toml").read_text())
    return [Module(path, tests["unit"], tests.get("integration", [])) for path, tests in table.items()]


def explained(module: str) -> dict[str, str]:
    """Return the explanations by mutant."""
    table: dict[str, list[dict[str, Any]]] = tomllib.loads((HERE / "survivors.toml").read_text())
    entries = table.get(module, [])
    return {f"{module}:{e['function']}: {change}": e["reason"] for e in entries for change in e["changes"]}


def try_all(record: Record, stage: str, forks: int, ends: float, only: str) -> None:
    """Run pytest sessions until every mutant was tried."""
    for _ in range(_SESSIONS):
        wanted = [key for key in record.wanted(stage) if only in key]
        if not wanted or time.monotonic() > ends:
            return
        started, before = time.monotonic(), len(record.wanted(stage))
        status = _session(record, stage, wanted, forks if stage == "unit" else 0, ends)
        record.seconds += time.monotonic() - started
        record.save()
        stands_still = status == 0 and len(record.wanted(stage)) == before
        if (stands_still or status not in (0, SESSION_BROKEN)) and time.monotonic() < ends:
            sys.exit(f"the tests of {record.module.path} cannot be run: see {_log(record.module, stage)}")
    sys.exit(f"{record.module.path}: {_SESSIONS} sessions were broken by mutants")


def _session(record: Record, stage: str, wanted: list[str], forks: int, ends: float) -> int:
    task = {
        "module": record.module.path,
        "tests": record.module.tests_of(stage),
        "mutants": wanted,
        "forks": forks,
        "killers": record.killers(stage),
        "log": str(_log(record.module, stage)),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.mutation.python.bench"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        json.dump(task, session.stdin)
        session.stdin.close()
        for line in session.stdout:
            key, by = json.loads(line)
            record.keep(key, stage, by)
            record.save()
            if time.monotonic() > ends:
                session.terminate()
        return session.wait()


def _log(module: Module, stage: str) -> Path:
    RECORDS.mkdir(parents=True, exist_ok=True)
    return RECORDS / f"{module.path.replace('/', '.')}.{stage}.log"


@attrs.frozen
class Verdict:
    module: str
    mutants: int
    killed: int
    explained: int
    faults: list[str]
    seconds: float

    @property
    def holds(self) -> bool:
        counted = self.mutants - self.explained
        return not self.faults and self.killed >= LEAST_KILLED * counted


def verdict(record: Record) -> Verdict:
    killed = {key: record.killed(key) for key in record.mutants}
    reasons = explained(record.module.path)
    return Verdict(
        record.module.path,
        len(killed),
        sum(bool(by) for by in killed.values()),
        sum(not killed.get(key, "gone") for key in reasons),
        list(faults(killed, reasons)),
        record.seconds,
    )


def faults(killed: dict[str, str | None], reasons: dict[str, str]) -> Iterator[str]:
    for key, by in killed.items():
        if by is None:
            yield f"not tried: {key}"
        elif not by and key not in reasons:
            yield f"survives: {key}"
    for key in reasons:
        if key not in killed:
            yield f"explained, but no longer made: {key}"
        elif killed[key]:
            yield f"explained, but killed by {killed[key]}: {key}"


def main() -> int:
    parser = argparse.ArgumentParser(description="mutation testing of Python")
    parser.add_argument("modules", nargs="*", help="parts of the paths in modules.toml; none: all")
    parser.add_argument("--forks", type=int, default=2, help="mutants that are tried on unit tests at once")
    parser.add_argument("--limit-minutes", type=float, default=1e9)
    parser.add_argument("--only", default="", help="mutants whose name has this text")
    parser.add_argument("--list", action="store_true", help="try nothing: what is known")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.limit_minutes
    verdicts = []
    for module in modules():
        if options.modules and not any(part in module.path for part in options.modules):
            continue
        record = Record(module)
        for stage in ("unit", "integration"):
            if module.tests_of(stage) and not options.list:
                try_all(record, stage, options.forks, ends, options.only)
        verdicts.append(verdict(record))
        print("\n".join(verdicts[-1].faults), end="\n" * bool(verdicts[-1].faults), flush=True)
    print("| module | mutants | killed | explained | seconds |\n|---|---|---|---|---|")
    for each in verdicts:
        print(f"| `{each.module}` | {each.mutants} | {each.killed} | {each.explained} | {each.seconds:.0f} |")
    return 0 if verdicts and all(each.holds for each in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
