"""The specification's client is evidence only while it shares no code with this project."""

import subprocess
import sys
from pathlib import Path

from tests.support.specification_client import client

_FOLDER = Path(client.__file__).parent
_OURS = ("common", "coordinatord", "devnet", "svc", "svcd")
_SCRIPT = """
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & set({ours!r})))
"""


def test_specification_client_imports_nothing_of_this_project() -> None:
    names = [f"tests.support.specification_client.{path.stem}" for path in sorted(_FOLDER.glob("*.py"))]
    assert len(names) >= 3
    script = _SCRIPT.format(names=names, ours=_OURS)
    root = _FOLDER.parents[2]
    ran = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
