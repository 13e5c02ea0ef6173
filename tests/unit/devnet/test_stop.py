import subprocess
import sys
from pathlib import Path

import pytest

from devnet.errors import DevnetError
from devnet.state_dir import claim_state_dir
from devnet.stop import main, stop_devnet

# Locks a directory until SIGTERM, and then ends normally.
HOLDER = """
import signal, sys
from pathlib import Path
from devnet.state_dir import claim_state_dir
with claim_state_dir(Path(sys.argv[1])):
    print("held", flush=True)
    signal.sigwait([signal.SIGTERM])
"""


def test_devnet_of_a_directory_is_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state"
    # The signal is blocked before it can arrive, so sigwait receives it.
    command = (sys.executable, "-c", f"import signal; signal.pthread_sigmask(0, [15]){HOLDER}", str(state))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert stop_devnet(state) == holder.pid
        assert holder.wait(10) == 0
    assert stop_devnet(state) is None


def test_no_devnet_is_nothing_to_stop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stop_devnet(tmp_path / "never") is None
    with claim_state_dir(tmp_path / "state"):
        pass
    assert main([str(tmp_path / "state")]) == 0
    assert capsys.readouterr().out == ""


def test_process_without_the_lock_is_never_signalled(tmp_path: Path) -> None:
    """The lock has the process id of a holder in another container. Here that id belongs to an unrelated process."""
    with claim_state_dir(tmp_path), subprocess.Popen(["sleep", "60"]) as bystander:
        (tmp_path / "lock").write_text(f"{bystander.pid}\n")
        with pytest.raises(DevnetError, match="stop the devnet there"):
            stop_devnet(tmp_path)
        assert bystander.poll() is None
        bystander.kill()
