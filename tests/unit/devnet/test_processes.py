import os
import subprocess
import sys
from pathlib import Path

import pytest

from devnet import anvil
from devnet.child import Program, start_program
from devnet.errors import DevnetError
from devnet.failure_causes import find_cause, find_closed_folder, find_error_line
from devnet.state_dir import claim_state_dir
from devnet.stop import main, stop_devnet

PLACE = Path("/market")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Error: Address already in use (os error 98)", ("port", "start again")),
        ('FATAL:  could not write to file "pg_wal/x": No space left on device', ("disk", "/market", "--state-dir")),
        ("FATAL:  could not map anonymous shared memory: Cannot allocate memory", ("memory", "close other programs")),
        ("initdb: error while loading shared libraries: libz.so.1: cannot open", ("libz.so.1", "install")),
        ("/anvil: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /anvil)", ("GLIBC_2.34", "or later")),
        ("OSError: [Errno 8] Exec format error: '/anvil'", ("another processor", "make clean")),
        ("OSError: [Errno 24] Too many open files", ("open files", "ulimit")),
        ("mkdir: Read-only file system", ("/market", "--state-dir")),
    ],
)
def test_program_error_gets_its_cause_and_remedy(said: str, words: tuple[str, ...]) -> None:
    cause = find_cause(1, f"starting\n{said}\n", PLACE)
    assert cause is not None
    assert [word for word in words if word not in cause] == []


def test_killed_program_is_reported_with_free_memory() -> None:
    assert "memory" in str(find_cause(-9, "all is well\n", PLACE))


def test_symptom_that_is_not_known_has_no_cause_made_up_for_it() -> None:
    assert find_cause(1, "something else\n", PLACE) is None
    assert find_cause(0, "", PLACE) is None


def test_folder_that_cannot_be_entered_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "within").mkdir(parents=True)
    for folder in (closed / "within", closed, tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to(tmp_path):
            folder.chmod(0o755)
    closed.chmod(0o700)
    first = find_closed_folder(closed / "within")
    assert first is not None
    assert closed.is_relative_to(first)  # this folder or one of its parents
    assert str(first) in str(find_cause(1, "initdb: Permission denied", closed / "within"))


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (
            "initdb: error: cannot be run as root\ninitdb: hint: log in as another\n",
            "initdb: error: cannot be run as root",
        ),
        ("ready\nsteady\n", "steady"),
        ("", ""),
    ],
)
def test_most_informative_line_is_shown(log: str, line: str) -> None:
    assert find_error_line(log) == line


async def test_programs_ignore_the_proxies_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    look = "from urllib.request import getproxies, proxy_bypass; print(getproxies()['http'], proxy_bypass('127.0.0.1'))"
    child = await start_program(Program("look", (sys.executable, "-c", look), tmp_path / "log"))
    await child.wait_for_success()
    assert (tmp_path / "log").read_text().split() == ["http://127.0.0.1:1", "True"]


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


def test_missing_program_is_answered_with_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DevnetError, match="run `make setup`"):
        anvil.find_anvil(contracts=tmp_path)
