"""svc on macOS and Windows, simulated on this system. `python -m tests.install portability` runs all unit tests of svc
this way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The tests with different behaviour. The first imports every module of svc.
DIFFERENT = (
    *("tests/install/portability", "tests/unit/svc/test_known_markets.py", "tests/unit/svc/test_profiles.py"),
    *("tests/unit/svc/test_profile_changes.py", "tests/unit/svc/test_wallets.py", "tests/unit/svc/test_files.py"),
)


@pytest.mark.parametrize("platform", ["win32", pytest.param("darwin", marks=pytest.mark.long)])
def test_what_differs_between_platforms_works_on_each(platform: str, tmp_path: Path) -> None:
    options = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "tests.install.portability.other_platform")
    command = [sys.executable, "-m", "pytest", *options, "--basetemp", str(tmp_path / "other"), *DIFFERENT]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != "CI"}
    ran = subprocess.run(
        command, cwd=ROOT, env={**environment, "SVC_PLATFORM": platform}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
