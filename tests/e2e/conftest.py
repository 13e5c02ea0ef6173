"""Start the devnet like a user: as a separate process, on free ports, in a test directory."""

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from devnet import client_environment
from devnet.ports import pick_free

PORT_FLAGS = (
    *("--rpc-port", "--database-port", "--pin-store-port", "--gateway-port"),
    *("--api-port", "--metrics-port", "--provider-metrics-port"),
)


@attrs.frozen
class Devnet:
    process: subprocess.Popen[str]
    state: Path

    def wait_up(self) -> dict[str, Any]:
        """Read the output until the devnet is up. Return the content of devnet.json."""
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if line.startswith("up:"):
                return dict(json.loads((self.state / "devnet.json").read_text()))
        raise AssertionError(f"it ended before it was up: {''.join(said)}{self.errors()}")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


Start = Callable[..., Devnet]


def free_ports() -> list[str]:
    return [part for flag in PORT_FLAGS for part in (flag, str(pick_free()))]


def launched(state: Path, *arguments: str, command: str = "up") -> Devnet:
    line = [sys.executable, "-m", "devnet.cli", command, "--state-dir", str(state), *free_ports(), *arguments]
    return Devnet(subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), state)


def client_variables(state: Path) -> dict[str, str]:
    """Return the variables that `devnet env` exports."""
    exported = (shlex.split(line)[1].partition("=") for line in client_environment.export_commands(state).splitlines())
    return {name: value for name, _, value in exported}


@attrs.frozen
class Market:
    devnet: Devnet
    environment: dict[str, str]  # of a client of this market

    @property
    def state(self) -> Path:
        return self.devnet.state


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    """One devnet for all tests that do not change it."""
    state = tmp_path_factory.mktemp("market") / "state"
    devnet = launched(state, "--automine", "--chain-id", "31337")
    with devnet.process:
        devnet.wait_up()
        yield Market(devnet, client_variables(state))
        devnet.end(signal.SIGTERM)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a devnet. Arguments override those for free ports."""
    started: list[subprocess.Popen[str]] = []

    def _start(*arguments: str, command: str = "up", state: Path | None = None) -> Devnet:
        state = state or tmp_path / "state"
        devnet = launched(state, *arguments, command=command)
        started.append(devnet.process)
        return devnet

    yield _start
    for process in started:
        with process:
            process.kill()


def descendants(pid: int) -> set[int]:
    """Return all processes below `pid`."""
    parents = _parents()
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def _parents() -> dict[int, int]:
    """Return the parent of each process. A small Debian has no `ps`."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return {pid: int(stat[1]) for pid in pids if (stat := _stat(pid))}


def _stat(pid: int) -> list[str]:
    """Return state, parent and further fields of a process, or nothing when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def wait_gone(pids: set[int]) -> None:
    """Wait until all `pids` have exited. They are not our children, so `wait` cannot be used."""
    deadline = time.monotonic() + 30
    while left := {pid for pid in pids if _alive(pid)}:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """A zombie counts as dead, because a new parent that is no init may never reap it."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"
