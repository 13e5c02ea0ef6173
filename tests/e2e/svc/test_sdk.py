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
from svc.errors import OrderRefused
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


async def test_images_and_embeddings_are_bought(client: Client) -> None:
    image = await client.run("demo/image-small", {"prompt": "a cat", "num_images": 2}, window="1m", timeout=120)
    assert [list(row) for row in image.output["data"]] == [["b64_json"]] * 2
    embedded = await client.run("demo/embed-small", {"input": ["a", "b"]}, window="1m", timeout=120)
    assert [len(row["embedding"]) for row in embedded.output["data"]] == [64, 64]


async def test_text_for_an_image_model_is_refused_before_payment(client: Client) -> None:
    with pytest.raises(OrderRefused, match="demo/image-small makes images: set num_images, width or resolution"):
        await client.run("demo/image-small", "a cat", window="1m")


async def test_batch_comes_back_in_file_order(client: Client) -> None:
    lines = [{"custom_id": str(n), "body": {"model": _MODEL, "input": f"line {n}"}} for n in range(5)]
    prepared = await client.batches.prepare(lines, window="1h")
    ended = await client.batches.wait((await client.batches.create(prepared)).id, every=0.2, timeout=120)
    results = [one async for one in client.batches.results(ended, custom_ids=prepared.custom_ids)]
    assert [one.custom_id for one in results] == ["0", "1", "2", "3", "4"]
    assert [one.result.output["input"] for one in results if one.result] == [f"line {n}" for n in range(5)]
