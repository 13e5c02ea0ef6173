import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.row import Row, Turns
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


_WITHOUT_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
"""


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        ("from common.canonical_json import canonical", "canonical({'b': 1, 'a': 2})"),
        ("from svcd.payload.sealable import to_sealable", r"to_sealable('\ud83d\ude00')"),
    ],
)
def test_text_is_encoded_without_a_free_descriptor(imports: str, use: str) -> None:
    script = f"{imports}\n{_WITHOUT_DESCRIPTORS}\n{use}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("samples", [[], [1.0], [1.0, 2.0]], ids=len)
def test_fewer_than_three_samples_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match=f"reads: {len(samples)} samples, expected at least 3"):
        Row.of("reads", samples, "reads/s", "hello", 1, target=1)


def test_limit_per_turn_uses_the_median_ratio() -> None:
    rates = Turns({"ours": [100.0, 400.0, 90.0], "other": [200.0, 500.0, 100.0]})
    row = rates.row("reads", "ours", "other", "hello", target=0.85, unit="kreads/s", scale=1000)
    assert (row.value, row.ratio, row.holds, row.n) == (0.1, 0.8, False, 3)
    assert (row.low, row.high) == (0.65, pytest.approx(0.85))


@pytest.mark.parametrize(("limit", "holds"), [(3, True), (2.9, False)])
def test_at_most_includes_the_limit(limit: float, holds: bool) -> None:
    assert Row.of("memory", [3, 3, 3], "MiB", "a limit", limit, at_most=1).holds is holds


def test_a_peak_is_held_by_the_largest_sample() -> None:
    row = Row.of("peak", [1, 1, 1, 5], "MiB", "2 MiB", 2, at_most=1, by=max)
    assert (row.value, row.ratio, row.holds, row.n) == (5, 2.5, False, 4)
