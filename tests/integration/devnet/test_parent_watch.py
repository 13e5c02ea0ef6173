"""A tethered command ends with its parent: by the kernel on Linux, and by the watch elsewhere."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devnet import parent_watch

# Both write the process id of the sleeping command.
REPLACED = f"""
import os, subprocess, sys
command = [sys.executable, "-I", "-S", {parent_watch.__file__!r}, str(os.getpid()), "9", "-", "/bin/sh", "-c"]
child = subprocess.Popen([*command, "echo $$; exec sleep 600"])
child.wait()
"""
WATCHED = f"""
import os, subprocess, sys
watch = "import sys; sys.path.insert(0, sys.argv[2]); from devnet.parent_watch import run_until_parent_dies; " \\
    "run_until_parent_dies(int(sys.argv[1]), 15, ['/bin/sh', '-c', 'echo $$; exec sleep 600'])"
root = {str(Path(parent_watch.__file__).parents[1])!r}
child = subprocess.Popen([sys.executable, "-c", watch, str(os.getpid()), root])
child.wait()
"""


@pytest.fixture(params=[REPLACED, WATCHED], ids=["by the kernel", "by the watch"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's, and the watch is tried beside it")
def test_command_ends_when_its_parent_is_killed(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    command = int(parent.stdout.readline())
    assert alive(command)
    parent.kill()
    wait_gone(command)


def test_command_does_not_start_for_a_parent_that_is_gone() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    tethered = [sys.executable, "-I", "-S", parent_watch.__file__, str(gone.pid), "9", "-", "/bin/echo", "started"]
    ended = subprocess.run(tethered, capture_output=True, text=True, check=False)
    assert ended.stdout == ""
    assert ended.returncode != 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_gone(pid: int) -> None:
    """Wait until the process that inherited this one has reaped it."""
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)
