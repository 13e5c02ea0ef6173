"""With CI=1, a skipped test fails unless it is listed with its reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.skips import ListedSkip, listed

ROOT = Path(__file__).parents[2]
LISTED, REASON = "tests/unit/config/test_units.py", "systemd-analyze is not installed here"
UNLISTED, OTHER_REASON = "tests/unit/test_other.py", "too tired"


@pytest.mark.parametrize(("ci", "failed"), [("0", []), ("1", [(LISTED, OTHER_REASON), (UNLISTED, REASON)])])
def test_unlisted_skip_fails_only_in_ci(tmp_path: Path, ci: str, failed: list[tuple[str, str]]) -> None:
    skips = [(LISTED, REASON), (LISTED, OTHER_REASON), (UNLISTED, REASON)]
    for number, (file, reason) in enumerate(skips):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as module:
            module.write(f"import pytest\n\ndef test_{number}():\n    pytest.skip({reason!r})\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "CI": ci, "PYTHONPATH": str(ROOT), "SKIPPED_TESTS": str(tmp_path / "skipped")}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.support.skips", "-p", "no:cacheprovider", "tests")
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    passed = sorted((file, reason) for file, reason in skips if (file, reason) not in failed)
    assert (tmp_path / "skipped").read_text() == "".join(f"  1 test of {file}: {reason}\n" for file, reason in passed)
    assert ran.returncode == (1 if failed else 0), ran.stdout + ran.stderr
    assert all(f"skipped ({reason}), and with CI=1" in ran.stdout for _, reason in failed)


@pytest.mark.parametrize("skip", listed(), ids=lambda skip: f"{skip.tests} {skip.reason}")
def test_listed_skip_is_of_a_test_and_has_a_reason(skip: ListedSkip) -> None:
    assert any(ROOT.glob(skip.tests.partition("::")[0]))
    assert skip.because
