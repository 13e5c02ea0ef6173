"""One minute of the soak: the complete market, under many kinds of faults, one after another. SOAK_SEED=random chooses
other faults.

Simultaneous faults of every kind (`python -m tests.soak --every 1`) need a machine without other load.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.soak.faults.schedule import KINDS
from tests.soak.verdict import INVARIANTS

# Kept until the next run.
OUT: Final = Path(__file__).parents[2] / "build" / "soak-e2e"
SEED: Final = os.environ.get("SOAK_SEED", "968117281")


@pytest.mark.long
@pytest.mark.timeout(600)  # a minute of faults, then the time to finish all started work
def test_minute_of_faults_leaves_every_promise_kept() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    command = [sys.executable, "-m", "tests.soak", "--minutes", "1", "--fault-every", "1", "--seed", SEED]
    ran = subprocess.run([*command, "--out", str(OUT)], capture_output=True, text=True, check=False)
    said = f"{ran.stdout}\n{ran.stderr}"
    assert (OUT / "soak.json").exists(), said
    told = json.loads((OUT / "soak.json").read_text())
    assert {name: one for name, one in told["invariants"].items() if not one["holds"]} == {}, said
    assert ran.returncode == 0, said
    assert set(told["invariants"]) == {*INVARIANTS, "other"}
    assert len(told["faults"]) >= len(KINDS) // 3, told["faults"]
    assert told["jobs"] > 0
    assert told["broadcasts"] > 0
    assert (OUT / "soak.html").stat().st_size > 0
