import os
import subprocess
import sys

import pytest

# Run without root, and try to read the environment of the parent from a child.
LOOKS = """
import ctypes, os
from common.daemon.secrets import hide_memory
def readable():
    parent, child = os.getpid(), os.fork()
    if child == 0:
        try:
            os._exit(0 if open(f"/proc/{parent}/environ").read() else 1)
        except PermissionError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as it is in a process that was no other user's
print(readable(), hide_memory(), readable())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_hidden_memory_is_unreadable_to_the_same_user() -> None:
    ended = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("True True False\n", "")
