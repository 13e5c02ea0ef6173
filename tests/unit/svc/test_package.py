"""The package: exported names, examples in docstrings, and macOS and Windows, simulated on this system.

`python -m tests.install portability` runs all unit tests of svc that way."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import svc
from svc import client, sync_client
from svc.client import Client
from svc.sync_client import SyncClient


def test_both_clients_are_had_from_the_package() -> None:
    assert (Client, SyncClient) == (client.Client, sync_client.SyncClient)
    assert {"Client", "SyncClient"} <= set(svc.__all__)


def test_unknown_package_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        svc.Clients  # noqa: B018 - looking it up is the test


def test_core_is_imported_without_the_clients_and_their_network() -> None:
    code = "import sys, svc.core.money; sys.exit('httpx' in sys.modules or 'svc.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_provider_imports_nothing_of_the_client_but_its_wire() -> None:
    code = (
        "import sys, svcd.run.app, svcd.operator.check;"
        "print(*sorted({'.'.join(name.split('.')[:2]) for name in sys.modules if name.startswith('svc.')}))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert found == ["svc.core", "svc.errors", "svc.wire"]


ROOT = Path(__file__).parents[3]
# The tests with different behaviour. The first imports every module of svc.
DIFFERENT = (
    *("tests/install/portability", "tests/unit/svc/test_known_markets.py", "tests/unit/svc/test_profiles.py"),
    *("tests/unit/svc/test_wallets.py", "tests/unit/svc/test_files.py"),
)


@pytest.mark.parametrize("platform", ["win32", pytest.param("darwin", marks=pytest.mark.long)])
def test_what_differs_between_platforms_works_on_each(platform: str, tmp_path: Path) -> None:
    options = ("-q", "--no-header", "-p", "no:cacheprovider", "-p", "tests.install.portability.other_platform")
    command = [sys.executable, "-m", "pytest", *options, "--basetemp", str(tmp_path / "other"), *DIFFERENT]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_") and name != "CI"}
    ran = subprocess.run(
        command, cwd=ROOT, env={**environment, "SVC_PLATFORM": platform}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:]


FOUND = [module.name for module in pkgutil.walk_packages(svc.__path__, "svc.") if module.name != "svc.sync_client"]


@pytest.mark.parametrize("name", FOUND)
def test_examples_show_what_happens(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    shown = {name for name in FOUND if any(test.examples for test in _tests(name))}
    assert {"svc.core.windows", "svc.core.money", "svc.core.model_input", "svc.settings", "svc.signers"} <= shown


def _tests(name: str) -> list[doctest.DocTest]:
    return doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
