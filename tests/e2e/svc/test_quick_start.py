"""The quick start of the top README, pasted as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import svc as package
from tests.e2e.conftest import Market

_README = Path(package.__path__[0]).parent / "README.md"


def test_quick_start_works_as_it_stands(market: Market, tmp_path: Path) -> None:
    found = re.search(r"^## Quick start$.*?^```sh\n(.*?)^```$", _README.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    block = found[1]
    assert len(block.splitlines()) == 10
    # The folder looks as the repository does with `make devnet` up.
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / ".devnet").symlink_to(market.state)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert '{"input": "Why is the sky blue?"}' in lines
    assert '{"input": "an open offer"}' in lines
    assert [json.loads(line)["output"]["input"] for line in lines[-3:]] == ["page 1", "page 2", "page 3"]
