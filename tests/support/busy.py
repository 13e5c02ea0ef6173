"""Run tests next to busy loops, which use up the processors.

    python -m tests.support.busy [ARGUMENTS OF PYTEST ...]

Without arguments, runs the tests of `make test` with three workers next to four loops.
"""

import subprocess
import sys
from typing import Final

from tests.support.requirements import ROOT

LOOPS: Final = 4
_ALL: Final = ("-n", "3", "--dist", "worksteal", "-m", "not long")


def main() -> int:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        command = [sys.executable, "-m", "pytest", "-q", *(sys.argv[1:] or _ALL)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    finally:
        for loop in loops:
            loop.kill()


if __name__ == "__main__":
    sys.exit(main())
