"""Cases that a devnet of this checkout shows within seconds. `make test` runs them."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import httpx

from devnet.ports import is_port_free
from devnet.settings import DEFAULTS
from tests.install.environments import without_ipv6
from tests.install.environments.room import Case, Failed, Room, first_line, names_below, require, require_nothing_runs

_SECONDS = 60


@attrs.frozen
class Up:
    manifest: dict[str, Any]
    said: str
    pid: int

    def require_answers(self) -> None:
        """Check that the coordinator is ready, uses the announced escrow, and follows the devnet's chain."""
        with httpx.Client(trust_env=False, timeout=20) as client:
            ready = client.get(f"{self.manifest['base_url']}/readyz").status_code
            escrow = client.get(f"{self.manifest['base_url']}/key").json()["escrow_public_key"]
            request = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
            chain = client.post(self.manifest["rpc_url"], json=request).json().get("result")
        if (ready, chain) != (200, hex(self.manifest["addresses"]["chainId"])):
            raise Failed(f"the coordinator answers {ready}, the chain {chain}")
        if self.manifest["escrow_key"] != f"0x{escrow}":
            raise Failed(f"devnet.json tells the escrow's key as {self.manifest['escrow_key']}, GET /key as {escrow}")
        for one in self.manifest["accounts"]:
            shown = f"provider {one['provider_id']}" if one["role"] == "provider" else one["role"]
            if not re.search(rf"^  {shown} +{one['address']}$", self.said, re.MULTILINE):
                raise Failed(f"devnet up does not name {shown} {one['address']}")


@contextmanager
def devnet_up(room: Room, state: Path, *arguments: str) -> Iterator[Up]:
    """Start a devnet, on the usual ports if free, and stop it in order at the end."""
    command = (sys.executable, "-m", "devnet.cli", "up", "--automine", "--state-dir", state, *arguments)
    with room.start(*command) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("up:"):
                break
        else:
            raise Failed(f"the devnet did not come up: {''.join(said)}")
        try:
            yield Up(json.loads((state / "devnet.json").read_text(encoding="utf-8")), "".join(said), process.pid)
        finally:
            process.terminate()
            process.communicate(timeout=_SECONDS)


def exported(room: Room, state: Path) -> dict[str, str]:
    """Return the variables that `devnet env` exports."""
    said = room.run(sys.executable, "-m", "devnet.cli", "env", "--state-dir", state)
    pairs = (shlex.split(line)[1].partition("=") for line in said.splitlines())
    return {name: value for name, _, value in pairs}


# At least 120 characters, with characters that break scripts. A socket path may have 107.
AWKWARD: Final = "a folder with spaces, ümlauts & 'quotes' — " + "and " * 20 + "a long name"
_ADDRESSES: Final = ("base_url", "gateway", "rpc_url", "metrics_url", "provider_metrics_url", "database_url")


def _ports_taken(room: Room) -> None:
    usual = [port.default_port for port in DEFAULTS.wanted_ports]
    with ExitStack() as listeners:
        for number in filter(is_port_free, usual):
            listeners.enter_context(socket.create_server(("127.0.0.1", number)))
        with devnet_up(room, room.folder / "state") as up:
            up.require_answers()
            for number in usual:
                require(
                    f":{number}/" not in "".join(f"{up.manifest[name]}/" for name in _ADDRESSES), f"{number} is used"
                )
                first_line(up.said, f"port {number} is in use: the ")
            values = exported(room, room.folder / "state")
            require(values["SVC_BASE_URL"] == up.manifest["base_url"], "devnet env leads elsewhere")
            require(values["SVC_RPC_URL"] == up.manifest["rpc_url"], "devnet env leads to another chain")


def _other_checkout(room: Room) -> None:
    mine, theirs = room.folder / "mine", room.folder / "theirs"
    with devnet_up(room, theirs) as first:
        with devnet_up(room, mine) as second:
            shared = {first.manifest[name] for name in _ADDRESSES} & {second.manifest[name] for name in _ADDRESSES}
            require(not shared, f"both use {shared}")
            second.require_answers()
            first.require_answers()
        first.require_answers()


def _killed(room: Room) -> None:
    state = room.folder / "state"
    with devnet_up(room, state) as up:
        segment = _segment_of_postgres(state)
        if seen := _segments():
            require(segment in seen, f"PostgreSQL runs without the shared memory {segment} that it names")
        os.kill(up.pid, signal.SIGKILL)
    with devnet_up(room, state) as again:  # start immediately: processes of the first run may still be ending
        first_line(again.said, "removed the files of a killed run from")
        again.require_answers()
    require_nothing_runs(room.folder)
    require(segment not in _segments(), f"shared memory was left: {segment}")


def _segment_of_postgres(state: Path) -> str:
    """Return key and id of the System V segment that locks PostgreSQL's data, from the seventh line of its pid file."""
    (pid_file,) = state.rglob("postmaster.pid")
    return " ".join(pid_file.read_text(encoding="utf-8").splitlines()[6].split())


def _segments() -> set[str]:
    """Return all segments of this machine, or an empty set where the system does not list them as Linux does."""
    table = Path("/proc/sysvipc/shm")
    rows = table.read_text(encoding="utf-8").splitlines()[1:] if table.exists() else []
    return {" ".join(row.split()[:2]) for row in rows}


def _stopped_from_elsewhere(room: Room) -> None:
    state = room.folder / "state"
    with devnet_up(room, state) as up:
        said = room.run(sys.executable, "-m", "devnet.cli", "down", "--state-dir", state)
        require(f"process {up.pid}" in said, f"devnet down said {said!r}")
        require_nothing_runs(room.folder)
    require(not (state / "devnet.json").exists(), "the manifest is still there")


def _closed_and_awkward(room: Room) -> None:
    """The room's mode is 0700. The umask makes the state directory private as well."""
    state = room.folder / AWKWARD / "state"
    with devnet_up(room.within("/bin/sh", "-c", 'umask 077 && exec "$@"', "sh"), state) as up:
        up.require_answers()
        open_to_others = [path for path in state.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077]
        require(not open_to_others, f"open to others: {open_to_others[:3]}")


def _without_home(room: Room) -> None:
    with devnet_up(room.within(HOME="/proc/nowhere"), room.folder / "state") as up:
        up.require_answers()


def _without_ipv6(room: Room) -> None:
    state = room.folder / "state"
    with devnet_up(room.within(sys.executable, without_ipv6.__file__), state) as up:
        up.require_answers()


def _leaves_nothing(room: Room) -> None:
    state = room.folder / "state"
    room.run(sys.executable, "-m", "devnet.cli", "demo", "--automine", "--state-dir", state)
    left = names_below(room.home) | names_below(room.temporary)
    require(not left, f"outside its state directory it left {left}")
    kept = {name.partition("/")[0] for name in names_below(state)}
    require(kept == {"lock", "logs"}, f"in its state directory it left {kept}")
    shutil.rmtree(state)


QUICK_CASES: Final = (
    Case("ports-taken", "every usual port is taken: the devnet picks and reports free ports", _ports_taken),
    Case("other-checkout", "a devnet of another checkout runs", _other_checkout),
    Case("killed", "the devnet before was killed (kill -9)", _killed),
    Case("stopped", "devnet down, from another terminal", _stopped_from_elsewhere),
    Case("closed-state", "umask 077, a long path of spaces, umlauts and quotes, closed to others", _closed_and_awkward),
    Case("no-home", "a home that is not there and cannot be made", _without_home),
    Case("no-ipv6", "a kernel without IPv6", _without_ipv6, without_ipv6.why_not),
    Case("leaves-nothing", "a demo leaves nothing outside its state directory", _leaves_nothing),
)
