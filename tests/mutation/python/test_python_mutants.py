"""Mutants, a session that tries them, and the report about kept outcomes."""

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutation.bench import ROOT
from tests.mutation.python.__main__ import faults
from tests.mutation.python.mutants import mutants_of

SOURCE = dedent('''
    LIMIT = 10


    def spend(amount: int, left: int = 3, *, note: str = "x") -> int:
        """A docstring: 1 < 2."""
        assert amount != 7
        if amount <= 0 or note == "never":
            raise ValueError(f"amount must be above 0, and is {amount + 0}")
        log.warning("spent", amount=amount * 1)
        left -= amount
        return max(left, 0)
''')


def mutants(tmp_path: Path, source: str) -> set[str]:
    path = tmp_path / "sample.py"
    path.write_text(source)
    found = mutants_of("sample.py", path)
    assert all(mutant.code(str(path)) for mutant in found)
    assert len({mutant.key for mutant in found}) == len(found)
    return {f"{mutant.function}: {mutant.change}" for mutant in found}


def test_faults_change_behaviour_and_not_texts(tmp_path: Path) -> None:
    error = "raise ValueError(f'amount must be above 0, and is {amount + 0}')"
    assert mutants(tmp_path, SOURCE) == {
        f"spend: {change}"
        for change in (
            f"if amount <= 0 or note == 'never': {error} -> pass",
            "amount <= 0 or note == 'never' -> amount <= 0",
            "amount <= 0 or note == 'never' -> note == 'never'",
            "amount <= 0 -> amount < 0",
            "0 -> 1",
            "0 -> -1",
            "note == 'never' -> note != 'never'",
            f"{error} -> pass",
            "left -= amount -> pass",
            "left -= amount -> left += amount",
            "return max(left, 0) -> return None",
            "max(left, 0) -> max(left)",
            "max(left, 0) -> min(left, 0)",
            "0 -> 1 #2",
            "0 -> -1 #2",
        )
    }


def test_mutant_keeps_its_name_when_lines_are_moved(tmp_path: Path) -> None:
    assert mutants(tmp_path, "import os\n\n\n" + SOURCE) == mutants(tmp_path, SOURCE)


@pytest.mark.parametrize("forks", [2, 0], ids=["forks", "in place"])
def test_session_reports_the_killing_test_of_each_mutant(forks: int, tmp_path: Path) -> None:
    module, test = tmp_path / "sample.py", tmp_path / "test_sample.py"
    module.write_text(
        "import functools\n\n\n@functools.cache\ndef twice(n):\n    return n * 2\n\n\ndef idle():\n    return [3]\n"
    )
    test.write_text(
        "import sys\nsys.path.insert(0, __file__.rpartition('/')[0])\nimport sample\n"
        "def test_twice():\n    assert sample.twice(3) == 6\n"
    )
    task = {
        "module": str(module),
        "tests": [str(test)],
        "mutants": [mutant.key for mutant in mutants_of(str(module), module)],
        "forks": forks,
        "killers": {},
        "log": str(tmp_path / "log"),
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutation.python.bench"],
        input=json.dumps(task),
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
    )
    told = dict(json.loads(line) for line in run.stdout.splitlines())
    assert {key.partition(": ")[2]: by.rpartition("::")[2] for key, by in told.items()} == {
        "return n * 2 -> return None": "test_twice",
        "n * 2 -> n // 2": "test_twice",
        "2 -> 3": "test_twice",
        "2 -> 1": "test_twice",
        "return [3] -> return None": "",
        "3 -> 4": "",
        "3 -> 2": "",
    }


def test_unexplained_survivors_and_needless_explanations_fail() -> None:
    killed = {"dead": "test_a", "survivor": "", "explained": "", "explained and dead": "test_b", "untried": None}
    reasons = {"explained": "r", "explained and dead": "r", "moved": "r"}
    assert list(faults(killed, reasons)) == [
        "survives: survivor",
        "not tried: untried",
        "explained, but killed by test_b: explained and dead",
        "explained, but no longer made: moved",
    ]
