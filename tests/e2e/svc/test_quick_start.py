"""Run the buyer's commands of the top README unchanged."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import svc as package
from tests.e2e.conftest import Market

_README = Path(package.__path__[0]).parent / "README.md"


def test_buyers_commands_of_the_readme(market: Market, tmp_path: Path) -> None:
    page = _README.read_text()
    setup = re.search(r"^\$ (\. \.venv/bin/activate.*)$", page, re.MULTILINE)
    commands = re.search(r"^## Buy$.*?^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert setup is not None
    assert commands is not None
    block = f"{setup[1]}\n{commands[1]}"
    # Make the folder look like the repository while `make devnet` is up.
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
    assert '{"input": "Name three uses of copper."}' in lines
    outputs = [json.loads(line)["output"]["input"] for line in lines[-3:]]
    assert outputs == [f"What is the capital of {country}?" for country in ("Japan", "Peru", "Norway")]
