"""The documentation is correct: run the quick start unchanged, and the examples of page and client."""

import doctest
import json
import os
import re
import sys
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

import svc
from svc import sync_client
from svc.sync_client import SyncClient
from tests.integration.svc.conftest import Shop
from tests.integration.svc.working_provider import WorkingProvider

PAGE = Path(svc.__path__[0]).parent / "docs" / "developers" / "client.md"


@pytest.fixture
def anyio_backend() -> str:
    """Both interfaces start programs here."""
    return "asyncio"


async def test_quick_start_works_as_it_stands(shop: Shop, provider: WorkingProvider, tmp_path: Path) -> None:
    found = re.search(r"^## Quick start$.*?^```sh\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert len(found[1].splitlines()) <= 10
    _like_the_repository(tmp_path, shop)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work)
        with anyio.fail_after(60):
            ended = await anyio.run_process(
                ["bash", "-e", "-o", "pipefail", "-c", found[1]], cwd=tmp_path, env=clean, stderr=None
            )
        tasks.cancel_scope.cancel()
    assert ended.stdout.startswith(b"{'for': None, 'text': 'sboj delaes'} {'output_tokens': 11} cost: ")


async def test_examples_of_docstrings_and_page_show_what_happens(shop: Shop, provider: WorkingProvider) -> None:
    text = PAGE.read_text("utf-8").replace("```", "")  # otherwise the fence would count as output

    def run() -> list[doctest.TestResults]:
        finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
        with SyncClient(environment=shop.options) as client:
            known = {"client": client}
            page = doctest.DocTestParser().get_doctest(text, dict(known), PAGE.name, str(PAGE), 0)
            tests = [page, *finder.find(sync_client, globs=known)]
            return [runner.run(test) for test in tests if test.examples]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(provider.work)
        ended = await to_thread.run_sync(run)
        tasks.cancel_scope.cancel()
    assert sum(one.attempted for one in ended) >= 28
    assert sum(one.failed for one in ended) == 0


def _like_the_repository(folder: Path, shop: Shop) -> None:
    """Make the folder look like the repository while `make devnet` is up, with the devnet's environment and
    description."""
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / ".devnet").mkdir()
    client = shop.world.wallets.with_role("client")[0]
    described = {
        "base_url": shop.base_url,
        "gateway": shop.gateway,
        "rpc_url": shop.world.anvil.rpc_url,
        "addresses": shop.world.market.address_book,
        "accounts": [{"role": "client", "private_key": client.private_key}],
    }
    (folder / ".devnet" / "devnet.json").write_text(json.dumps(described))
    (folder / ".devnet" / "addresses.json").write_text(json.dumps(shop.world.market.address_book))
