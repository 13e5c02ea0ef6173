"""The buyer's commands of the top README, and the SDK on both event loops, in a market with a running provider."""

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import svc as package
from svc.client import Client
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


_MODEL = "demo/text-small"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(market: Market, anyio_backend: str) -> AsyncIterator[Client]:
    # The client may already know the market. That depends on which test ran first.
    async with Client(environment=market.environment, on_first_use=lambda _: None) as client:
        yield client


async def test_designated_and_open_jobs_come_back_opened(client: Client) -> None:
    designated = await client.run(_MODEL, "for one provider", window="async", timeout=120)
    asks = (designated.job.svc.rate_in, designated.job.svc.rate_out)
    offered = await client.run(_MODEL, "for anybody", window="async", rate_in=asks[0], rate_out=asks[1], timeout=120)
    assert (designated.output, offered.output) == ({"input": "for one provider"}, {"input": "for anybody"})
    assert (designated.job.svc.designated > 0, offered.job.svc.designated) == (True, 0)
