"""Memory of a busy daemon."""

import re
from pathlib import Path

from tests.bench.provider import running, until

HELD = 1_000
RUN_S = 300.0  # of each job, longer than claiming all of them takes


def peak_mib(pid: int) -> float:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def test_thousand_held_jobs_take_at_most_200_mib() -> None:
    with running(HELD, RUN_S, HELD) as (pid, progress):
        until(lambda: progress().held == HELD)
        assert peak_mib(pid) <= 200
