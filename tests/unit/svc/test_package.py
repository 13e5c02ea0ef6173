import subprocess
import sys


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
