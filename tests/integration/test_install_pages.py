"""Follow the installation pages of the two daemons exactly, on a folder that replaces the machine's root.

By default this project's environment replaces what the pages install with pip. With INSTALL_CHECK=1 (`make
install-check`) pip installs from the locks, and the services run as another user where the machine allows it.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import httpx
import pytest

from devnet.ports import pick_free
from devnet.world import World
from tests.install.environments.users import python_for
from tests.support.fakes import service_manager
from tests.support.fakes.page_shell import PageShell, chapter

PROJECT = Path(__file__).parents[2]
COORDINATOR = PROJECT / "docs" / "operators" / "install.md"
MAINTENANCE = PROJECT / "docs" / "operators" / "maintenance.md"
PROVIDER = PROJECT / "docs" / "providers" / "quickstart.md"
WITH_PIP = os.environ.get("INSTALL_CHECK") == "1"
NOBODY_ELSE = 61_500  # in systemd's range of dynamic users
ANALYZE = shutil.which("systemd-analyze")


@attrs.frozen
class Machine:
    root: Path
    shell: PageShell

    def follow(self, page: Path, heading: str, *, skip: int = 0) -> str:
        return "".join(self.shell.run(block) for block in chapter(page, heading)[skip:])

    def mode(self, path: str) -> str:
        """Return a file's mode, such as `755`, if the file is ours."""
        found = (self.root / path).stat()
        assert found.st_uid == os.geteuid(), path
        return f"{stat.S_IMODE(found.st_mode):o}"


@pytest.fixture
def database_template() -> str:
    """The page begins with an empty database."""
    return "template1"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A root that contains only the standard folders of Linux."""
    folder = Path(tempfile.mkdtemp(prefix="machine-"))
    folder.chmod(0o755)  # the service's user has to enter it
    root, tools = folder / "root", folder / "tools"
    for path in (root / "etc/systemd/system", root / "opt", tools):
        path.mkdir(parents=True)
    python = python_for(NOBODY_ELSE) if WITH_PIP and os.geteuid() == 0 else None
    service_manager.install(tools, root, None if python is None else NOBODY_ELSE)
    monkeypatch.setenv("SERVICE_ROOT", str(root))
    if python is not None:
        (tools / "python3").symlink_to(python)
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG") or name.startswith("PIP_")}
    shell = PageShell(root, {**kept, "PATH": f"{tools}:{os.environ['PATH']}", "PGSSLMODE": "disable"}, cwd=PROJECT)
    yield Machine(root, shell)
    service_manager.stop_all()
    shutil.rmtree(folder)


def program(machine: Machine, name: str, page: Path, heading: str, *, blocks: int = 1) -> None:
    """Run the page's commands, or create what they would."""
    if WITH_PIP:
        for block in chapter(page, heading)[:blocks]:
            machine.shell.run(block)
        return
    folder = machine.root / "opt" / name / "bin"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(Path(sys.executable).with_name(name))


def require_valid_units(machine: Machine, name: str) -> None:
    if ANALYZE is None:
        return  # tests/unit/systemd checks the units themselves
    units = machine.root / "checked"
    units.mkdir()
    for unit in (machine.root / "etc/systemd/system").glob(f"{name}*.service"):
        text = unit.read_text(encoding="utf-8").replace("/opt/", f"{machine.root}/opt/")
        copy = units / unit.name.replace("@.", "@9402.")
        copy.write_text(text, encoding="utf-8")
        done = subprocess.run([ANALYZE, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
        ours = [line for line in done.stderr.splitlines() if name in line]
        assert (done.returncode, ours) == (0, [])


def owners_of_processes(machine: Machine) -> set[int]:
    return {Path(f"/proc/{file.read_text()}").stat().st_uid for file in (machine.root / "run/units").glob("*.pid")}


def table_of(page: Path) -> dict[str, str]:
    """Return path and mode of each row of the page's table."""
    rows = [line.split("|") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `/")]
    return {row[1].strip(" `/"): row[2].strip() for row in rows}


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here: the page asks for readiness with it")
@pytest.mark.timeout(600 if WITH_PIP else 120)
def test_coordinator_is_installed_from_its_page_and_serves(machine: Machine, world: World, database_url: str) -> None:
    book = machine.root.parent / "book.json"
    book.write_text(json.dumps(world.market.address_book))
    port = pick_free()
    machine.shell.environment |= {
        **{"ADDRESS_BOOK": str(book), "RPC_URL": world.anvil.rpc_url, "DATABASE_URL": database_url, "PORT": str(port)},
        **{"PIN_STORE_ENDPOINT": world.pins.endpoint, "PIN_STORE_BUCKET": world.pins.bucket},
        **{"PIN_STORE_KEY": world.pins.key, "PIN_STORE_SECRET": world.pins.secret},
    }
    program(machine, "coordinatord", COORDINATOR, "The program", blocks=2)
    machine.follow(COORDINATOR, "The units")
    machine.follow(COORDINATOR, "The configuration")
    changed = {"PORT": port, "METRICS_PORT": pick_free(), "BLOCK_TIME_MS": 100}
    # The only path inside a setting. The daemon does not know that the folder replaces the root.
    for name, value in {**changed, "ADDRESSES_FILE": "/etc/coordinatord/addresses.json"}.items():
        machine.shell.run(f"setting {name} {value}")
    relayer = machine.follow(COORDINATOR, "The secrets").strip()
    appoint(machine, world, relayer)
    said = machine.follow(COORDINATOR, "The first start")
    assert "WRONG" not in said
    assert httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).status_code == 200
    assert set(table_of(COORDINATOR)) >= {"etc/coordinatord/credentials", "etc/systemd/system/coordinatord.service"}
    assert {path: machine.mode(path) for path in table_of(COORDINATOR)} == table_of(COORDINATOR)
    credentials = machine.root / "etc/coordinatord/credentials"
    assert {machine.mode(str(file.relative_to(machine.root))) for file in credentials.iterdir()} == {"600"}
    settings = (machine.root / "etc/coordinatord/coordinatord.env").read_text(encoding="utf-8")
    assert not any(secret.read_text().strip() in settings for secret in credentials.iterdir())
    require_valid_units(machine, "coordinatord")
    assert owners_of_processes(machine) == {service_user(machine)}


def service_user(machine: Machine) -> int:
    script = (machine.root.parent / "tools" / "systemctl").read_text(encoding="utf-8")
    user = script.partition("SERVICE_USER=")[2].split()[0]
    return int(user) if user.isdigit() else os.geteuid()


def appoint(machine: Machine, world: World, relayer: str) -> None:
    """Do other people's part: the owner appoints the account, and funds arrive."""
    key = machine.root.parent / "owner.key"
    key.write_text(world.wallets.admin.private_key)
    key.chmod(0o600)
    owner = f"--key-file {key} --addresses {machine.shell.environment['ADDRESS_BOOK']} --confirmations 1 --poll 0.05"
    machine.shell.run(f"/opt/coordinatord/bin/coordinatord market admin grant-relayer {relayer} {owner}")
    request = {"jsonrpc": "2.0", "id": 1, "method": "anvil_setBalance", "params": [relayer, hex(10**19)]}
    httpx.post(world.anvil.rpc_url, json=request, trust_env=False).raise_for_status()


PROVIDER_SETTINGS = """
state_directory = "{root}/var/lib/svcd"
[coordinator]
url = "http://127.0.0.1:1"
[gateway]
urls = ["http://127.0.0.1:1"]
[keys]
wallet = "wallet.key"
box = "box.key"
[metrics]
port = {port}
[[model]]
name = "demo/text-small"
slots = 1
[[model.ask]]
sla_seconds = 3600
rate_in = "1"
rate_out = "1"
[model.backend]
kind = "echo"
"""


@pytest.mark.timeout(600 if WITH_PIP else 60)
def test_provider_is_installed_from_its_page_and_starts(machine: Machine) -> None:
    program(machine, "svcd", PROVIDER, "Install")
    machine.follow(PROVIDER, "Install", skip=1)
    machine.follow(PROVIDER, "Keys")
    assert "state_directory" in (machine.root / "etc/svcd/svcd.toml.example").read_text(encoding="utf-8")
    assert not (machine.root / "etc/svcd/svcd.toml").exists()  # `svcd init` writes it, and overwrites no file
    modes = {"etc/svcd": "755", "etc/svcd/svcd.toml.example": "644", "etc/svcd/credentials": "700"}
    modes |= {f"etc/svcd/credentials/{name}.key": "600" for name in ("wallet", "box")}
    assert {path: machine.mode(path) for path in modes} == modes
    text = PROVIDER_SETTINGS.format(root=machine.root, port=pick_free())
    (machine.root / "etc/svcd/svcd.toml").write_text(text)
    machine.shell.run("systemctl enable --now svcd")
    require_valid_units(machine, "svcd")
    assert owners_of_processes(machine) == {service_user(machine)}
    assert f"{stat.S_IMODE((machine.root / 'var/lib/svcd').stat().st_mode):o}" == "700"


def test_units_are_pointed_to_the_new_release_and_back(machine: Machine) -> None:
    machine.follow(COORDINATOR, "The units")
    _, point = chapter(MAINTENANCE, "Upgrade")
    commands = {"coordinatord": "serve", "coordinatord@9402": "serve", "coordinatord-migrate": "migrate"}

    def started() -> dict[str, list[str]]:
        return {unit: service_manager.unit_settings(unit)["ExecStart"] for unit in commands}

    before = started()
    machine.shell.run("NEW=/opt/coordinatord-9.9.9")
    machine.shell.run(point)
    new = machine.root / "opt/coordinatord-9.9.9/bin/coordinatord"
    assert started() == {unit: [f"{new} {command}"] for unit, command in commands.items()}
    machine.shell.run("point /opt/coordinatord")
    old = machine.root / "opt/coordinatord/bin/coordinatord"
    assert started() == {unit: [f"{old} {command}"] for unit, command in commands.items()} != before
