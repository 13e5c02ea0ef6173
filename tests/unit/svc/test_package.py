import subprocess
import sys

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
