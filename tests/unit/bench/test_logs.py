import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import subprocess, sys
from pathlib import Path
from tests.bench.logs import logged

print("before")
try:
    with logged(Path(sys.argv[1])) as terminal:
        print("our own")
        print("our own trouble", file=sys.stderr)
        subprocess.run([sys.executable, "-c", "import sys; print('a daemon'); print('its trouble', file=sys.stderr)"])
        print("the table", file=terminal, flush=True)
        if len(sys.argv) > 2:
            raise SystemExit("it failed")
finally:
    print("after")
"""


@pytest.mark.parametrize("failing", [[], ["failing"]], ids=["ends", "fails"])
def test_terminal_shows_tables_and_the_log_has_the_rest(tmp_path: Path, failing: list[str]) -> None:
    log = tmp_path / "build" / "bench.log"
    for _ in range(2):  # the second run replaces the log of the first
        command = [sys.executable, "-c", RUN, str(log), *failing]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == "before\nafter\n"
    assert ran.stderr == "the table\n" + ("it failed\n" if failing else "")
    assert sorted(log.read_text().splitlines()) == ["a daemon", "its trouble", "our own", "our own trouble"]
