"""With CI=1, a skipped test fails unless it is listed with its reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import ListedSkip, listed

ROOT = Path(__file__).parents[2]
LISTED = "tests/unit/systemd/test_units.py", "systemd-analyze is not installed here"


def run(folder: Path, file: str, reason: str, ci: str | None) -> subprocess.CompletedProcess[str]:
    """Run pytest with only the plugin, over a file with one skipped test in a separate folder."""
    path = folder / file
    path.parent.mkdir(parents=True)
    path.write_text(f"import pytest\n\ndef test_one():\n    pytest.skip({reason!r})\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "SKIPPED_TESTS"}}
    environment |= {"PYTHONPATH": str(ROOT)} | ({} if ci is None else {"CI": ci})
    command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "no:cacheprovider", file)
    environment["SKIPPED_TESTS"] = str(folder / "skipped")
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("file", "reason", "ci", "passes"),
    [
        (*LISTED, "1", True),
        (*LISTED, None, True),
        ("tests/unit/test_other.py", LISTED[1], None, True),
        ("tests/unit/test_other.py", LISTED[1], "0", True),
        ("tests/unit/test_other.py", LISTED[1], "1", False),
        (LISTED[0], "too tired", "1", False),
    ],
)
def test_skip_passes_where_it_is_listed_or_nobody_asks(
    tmp_path: Path, file: str, reason: str, ci: str | None, *, passes: bool
) -> None:
    ran = run(tmp_path, file, reason, ci)
    assert (ran.returncode == 0) is passes, ran.stdout + ran.stderr
    told = (tmp_path / "skipped").read_text()
    assert told == (f"  1 test of {file}: {reason}\n" if passes else "")
    assert passes or (reason in ran.stdout and "tests/skips.toml" in ran.stdout)


@pytest.mark.parametrize("skip", listed(), ids=lambda skip: skip.tests)
def test_listed_skip_is_of_tests_that_there_are_and_has_a_reason(skip: ListedSkip) -> None:
    assert (ROOT / skip.tests.partition("::")[0]).is_file()
    assert skip.because
