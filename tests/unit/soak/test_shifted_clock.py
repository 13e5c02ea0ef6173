import subprocess
import sys
from pathlib import Path

from tests.soak.shifted_clock import write_shift

# Prints its clock for every line of its input.
_TELLING = "import sys, time\nfor line in sys.stdin: print(time.time(), sys.argv[1], flush=True)\n"


def test_program_sees_the_shifted_clock_and_its_arguments(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    write_shift(clock, 0.0)
    (tmp_path / "telling.py").write_text(_TELLING)
    command = [sys.executable, "-m", "tests.soak.shifted_clock", str(clock), "telling", "argument"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = []
        for shift in (0.0, 900.0, -900.0):
            write_shift(clock, shift)
            process.stdin.write("\n")
            process.stdin.flush()
            told.append(process.stdout.readline().split())
        process.stdin.close()
    times = [float(at) for at, _ in told]
    assert [round((at - times[0]) / 900) for at in times] == [0, 1, -1]
    assert {argument for _, argument in told} == {"argument"}
