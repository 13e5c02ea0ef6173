"""The units are valid, sandboxed, and match the daemons' behaviour."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings.reader import settings_of
from coordinatord.run.config import Config, read_config
from coordinatord.run.descriptors import max_caller_connections
from coordinatord.run.limits import CONNECTION_BYTES, Limits
from tests.unit.coordinatord.environment import ENVIRONMENT

UNITS = Path(__file__).parents[3] / "systemd"
NAMES = sorted(path.name for path in UNITS.glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
DAEMONS = [name for name in NAMES if "migrate" not in name]


def settings(name: str) -> dict[str, list[str]]:
    """Return every setting of a unit with its values in order."""
    found: dict[str, list[str]] = {}
    for line in (UNITS / name).read_text(encoding="utf-8").splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def gibibytes(size: str) -> float:
    return int(size[:-1]) / {"G": 1, "M": 1024}[size[-1]]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Write the units with existing programs, and templates as instances, in a form that systemd-analyze accepts."""
    for name in NAMES:
        text = (UNITS / name).read_text(encoding="utf-8")
        for program in ("/opt/coordinatord/bin/coordinatord", "/opt/svcd/bin/svcd"):
            text = text.replace(program, sys.executable)
        (tmp_path / name.replace("@.", "@9402.")).write_text(text, encoding="utf-8")
    return tmp_path


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed here")
    return subprocess.run([ANALYZE, *arguments], capture_output=True, text=True, check=False)


def test_units_exist_for_daemons_templates_and_migrations() -> None:
    daemons = {f"{daemon}{kind}.service" for daemon in ("coordinatord", "svcd") for kind in ("", "@")}
    assert set(NAMES) == daemons | {"coordinatord-migrate.service"}


@pytest.mark.parametrize("name", NAMES)
def test_unit_is_valid(installed: Path, name: str) -> None:
    verified = analyzed("verify", "--man=no", str(installed / name.replace("@.", "@9402.")))
    # systemd-analyze also reads units of this machine. Ignore findings about those.
    ours = [line for line in verified.stderr.splitlines() if "coordinatord" in line or "svcd" in line]
    assert (verified.returncode, ours) == (0, [])


@pytest.mark.parametrize("name", NAMES)
def test_unit_exposes_at_most_1_2(installed: Path, name: str) -> None:
    unit = str(installed / name.replace("@.", "@9402."))
    judged = analyzed("security", "--offline=true", "--no-pager", "--threshold=12", unit)
    assert judged.returncode == 0, judged.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", NAMES)
def test_unit_limits_memory_and_dumps_nothing(name: str) -> None:
    unit = settings(name)
    assert unit["LimitCORE"] == ["0"]
    assert int(unit["TasksMax"][0]) > 40  # threads of the pool
    assert gibibytes(unit["MemoryMax"][0]) > 0


@pytest.mark.parametrize("name", [name for name in DAEMONS if name.startswith("coordinatord")])
def test_coordinator_memory_covers_its_configured_limits(name: str) -> None:
    limits, config = Limits(), read_config(ENVIRONMENT)
    memory = int(gibibytes(settings(name)["MemoryMax"][0]) * (1 << 30))
    connections = max_caller_connections(int(settings(name)["LimitNOFILE"][0]), memory, config)
    assert connections >= limits.connections
    held = limits.body_memory_bytes + limits.upload_memory_bytes + connections * CONNECTION_BYTES
    assert memory > held + (512 << 20)


@pytest.mark.parametrize("name", DAEMONS)
def test_daemon_notifies_readiness_and_is_restarted_on_hang(name: str) -> None:
    unit = settings(name)
    assert (unit["Type"], unit["NotifyAccess"], unit["Restart"]) == (["notify"], ["main"], ["on-failure"])
    assert int(unit["WatchdogSec"][0]) > 0


@pytest.mark.parametrize("name", [name for name in DAEMONS if name.startswith("coordinatord")])
def test_stop_waits_longer_than_the_coordinators_own_grace(name: str) -> None:
    assert int(settings(name)["TimeoutStopSec"][0]) >= Limits().shutdown_grace_s + 5


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("coordinatord")])
def test_required_secrets_come_as_credentials(name: str) -> None:
    required = {each.name for each in settings_of(Config) if each.secret}
    loaded = {value.partition(":")[0] for value in settings(name)["LoadCredential"]}
    assert loaded <= required
    assert {"database_url", "relayer_key", "pin_store_key", "pin_store_secret"} <= loaded


@pytest.mark.parametrize(("one", "several"), [("coordinatord", "coordinatord@"), ("svcd", "svcd@")])
def test_template_differs_from_the_unit_only_by_instance(one: str, several: str) -> None:
    alone, instance = settings(f"{one}.service"), settings(f"{several}.service")
    assert alone.keys() == instance.keys()
    assert all("%i" in "".join(instance[key]) for key in alone if alone[key] != instance[key])
