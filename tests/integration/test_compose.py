"""Start config/compose.yaml without an engine: each service as a process, in the order of the file, until healthy.

Names of services become 127.0.0.1, their ports free ones, and the paths that they mount lie in a folder of the test.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any, Final

import attrs
import jsonschema
import pytest
from ruamel.yaml import YAML

from devnet import anvil
from devnet.accounts import DevWallets
from devnet.ports import pick_free
from devnet.postgres import Postgres, find_binaries
from svc import SyncClient

FILE = Path(__file__).parents[2] / "config" / "compose.yaml"
HEALTHY_SECONDS: Final = 180  # on a busy machine
VIRTUAL_ENVIRONMENT = Path(sys.executable).parent
# Programs that the images start without a path. The node's image has cast, and the npm packages do not.
ENTRYPOINTS = {"store": ["rclone"], "gateway": ["rclone"], "provider": ["/opt/svcd/bin/svcd"]}
COORDINATOR = ["/opt/coordinatord/bin/coordinatord", "serve"]
CAST = f"""#!{sys.executable}
import json, sys, urllib.request
body = json.dumps({{"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}}).encode()
request = urllib.request.Request(sys.argv[3], body, {{"content-type": "application/json"}})
json.load(urllib.request.urlopen(request))["result"]
"""


@pytest.fixture
def compose() -> dict[str, Any]:
    return dict(YAML(typ="safe").load(FILE))


def test_file_fits_the_compose_schema(compose: dict[str, Any]) -> None:
    folder = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    jsonschema.validate(compose, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose, "services": {"node": {"imag": "anvil"}}}, schema)


def test_services_wait_for_what_can_be_waited_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[needed], f"{name} waits for the health of {needed}"
            else:
                assert "restart" not in services[needed], f"{name} waits for the end of {needed}"


def test_keys_and_ports_stay_on_this_machine(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@attrs.frozen
class Machine:
    """Fake container engine that starts services as processes."""

    compose: dict[str, Any]
    root: Path
    ports: dict[tuple[str, str], int]
    path: str

    def text(self, service: str, text: str) -> str:
        """Translate hosts, ports and paths of a service into those of this machine."""

        def address(found: re.Match[str]) -> str:
            return f"{found[1]}127.0.0.1:{self.ports[found[2], found[3]]}"

        text = re.sub(rf"(//|@)({'|'.join(self.compose['services'])}):(\d+)", address, text)
        for (owner, port), free in self.ports.items():
            if owner == service:
                text = re.sub(rf"(?<![\w.]){port}(?!\w)", str(free), text)
        text = text.replace("0.0.0.0", "127.0.0.1").replace("$$", "$")  # noqa: S104 - a service must not bind it here
        text = re.sub(r"/opt/\w+/bin", str(VIRTUAL_ENVIRONMENT), text)
        return re.sub(
            r"(?<![\w.])(/market|/data|/state|/var/lib/svcd|/etc/market\.toml|/etc/svcd)", rf"{self.root}\1", text
        )

    def words(self, service: str, words: Sequence[str]) -> list[str]:
        return [self.text(service, word) for word in words]

    def command(self, name: str) -> list[str]:
        service = self.compose["services"][name]
        entrypoint = service.get("entrypoint", ENTRYPOINTS.get(name, []))
        return self.words(name, [*entrypoint, *service.get("command", COORDINATOR)])

    def environment(self, name: str) -> dict[str, str]:
        given = self.compose["services"][name].get("environment", {})
        kept = {"PATH": self.path, "HOME": str(self.root), "RCLONE_CONFIG": "/dev/null", "BIND_HOST": "127.0.0.1"}
        return kept | {key: self.text(name, value) for key, value in given.items()}

    def mount(self, name: str) -> None:
        service = self.compose["services"][name]
        for volume in service.get("volumes", ()):
            self.root.joinpath(volume.split(":")[1].lstrip("/")).mkdir(parents=True, exist_ok=True)
        for config in service.get("configs", ()):
            file = self.root / config["target"].lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.text(name, self.compose["configs"][config["source"]]["content"]))

    def is_healthy(self, name: str) -> bool:
        kind, *words = self.compose["services"][name]["healthcheck"]["test"]
        assert kind == "CMD"
        check = self.words(name, words)
        return subprocess.run(check, env=self.environment(name), capture_output=True, check=False).returncode == 0


@pytest.fixture
def machine(compose: dict[str, Any], postgres: Postgres, tmp_path: Path) -> Machine:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cast").write_text(CAST)
    (tools / "cast").chmod(0o755)
    (tools / "anvil").symlink_to(anvil.find_anvil())
    folders = (tools, VIRTUAL_ENVIRONMENT, Path("/usr/bin"), Path("/bin"), find_binaries())
    ports = {
        **{("node", "8545"): pick_free(), ("store", "8480"): pick_free(), ("gateway", "8481"): pick_free()},
        **{("coordinator-1", "8402"): pick_free(), ("coordinator-1", "9402"): pick_free()},
        **{("coordinator-2", "8402"): pick_free(), ("coordinator-2", "9402"): pick_free()},
        **{("provider", "9403"): pick_free(), ("postgres", "5432"): postgres.port},
    }
    return Machine(compose, tmp_path / "root", ports, os.pathsep.join(map(str, folders)))


@pytest.fixture
def database_template() -> str:
    """The first coordinator creates the tables."""
    return "template1"


@pytest.mark.long
def test_market_starts_in_the_order_of_the_file(machine: Machine, database_url: str, wallets: DevWallets) -> None:
    services = machine.compose["services"]
    for name in ("coordinator-1", "coordinator-2"):
        services[name]["environment"] = services[name]["environment"] | {"DATABASE_URL": database_url}
    order = TopologicalSorter({name: list(service.get("depends_on", {})) for name, service in services.items()})
    with ExitStack() as stack:
        started: list[tuple[str, subprocess.Popen[bytes]]] = []
        for name in order.static_order():
            if name == "postgres":
                assert machine.is_healthy(name)
                continue
            machine.mount(name)
            process = stack.enter_context(subprocess.Popen(machine.command(name), env=machine.environment(name)))
            stack.callback(process.kill)
            if "healthcheck" not in services[name]:
                assert process.wait(HEALTHY_SECONDS) == 0, name
                continue
            started.append((name, process))
            wait_until_healthy(machine, name, process)
        buy(machine, wallets)
        for name, process in reversed(started):
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
            assert status == 0 or "pull_policy" not in services[name], name  # rclone and anvil exit with other statuses


def wait_until_healthy(machine: Machine, name: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS
    while not machine.is_healthy(name):
        assert process.poll() is None, f"{name} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{name} is not healthy after {HEALTHY_SECONDS} s"


def buy(machine: Machine, wallets: DevWallets) -> None:
    client = SyncClient(
        f"http://127.0.0.1:{machine.ports['coordinator-1', '8402']}",
        wallet_key=wallets.with_role("client")[0].private_key,
        gateways=[f"http://127.0.0.1:{machine.ports['gateway', '8481']}"],
        known_markets=None,
        on_first_use=lambda _: None,
        environment={},
    )
    with client:
        # An open order waits until the provider has published its ask.
        rates = {"rate_in": 100_000, "rate_out": 200_000}
        result = client.run("demo/text-small", "composed", window="1h", **rates, timeout=60, final=True)
    assert result.output == {"input": "composed"}
