"""A devnet of this checkout that runs under a case's restrictions."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx

from tests.install.environments.room import Failed, Room

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
