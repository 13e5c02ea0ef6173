"""The page of `svc serve` in a real browser, while a provider takes one step of a job after another."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tests.integration.svc.conftest import Shop
from tests.integration.svc.working_provider import WorkingProvider
from tests.support.fakes.browser import Browser, browsing, missing

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.skipif(os.environ.get("WEB_CHECK") != "1", reason="takes a minute: set WEB_CHECK=1"),
]
WIDTHS: Final = {"phone": 360, "tablet": 768, "desk": 1280}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the server is another process


@pytest.fixture
def link(shop: Shop, tmp_path: Path) -> Iterator[str]:
    """Start `svc serve`, and return a link to its page."""
    program = [sys.executable, "-m", "svc", "serve"]
    options = shop.options | {"SVC_RPC_URL": shop.world.anvil.rpc_url}
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **options}
    state = ("--state", str(tmp_path / "state"))
    command = [*program, "--port", "0", *state]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("base_url: ")
        command = [*program, "link", *state]
        yield subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        process.terminate()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        await browser.ask("look", {})
        yield browser


async def poll_often(provider: WorkingProvider) -> None:
    """Poll until cancelled. Only a provider that polls is a candidate for an order."""
    while True:
        await provider.poll()
        await anyio.sleep(1)


async def offered(provider: WorkingProvider) -> dict[str, Any]:
    while not (rows := await provider.poll()):  # noqa: ASYNC110 - a request
        await anyio.sleep(0.05)
    return rows[0]


async def looked_at(browser: Browser, step: str) -> None:
    for dark, (name, width) in enumerate(WIDTHS.items()):
        await browser.ask("look", {"width": width, "height": 800, "dark": dark % 2 == 1})
        await browser.picture(f"playground-{step}-{name}")
        assert await browser.ask("axe") == []
        assert await browser.ask("evaluate", "document.documentElement.scrollWidth - innerWidth") <= 0


async def test_each_step_of_a_job_is_shown_below_its_answer(
    shop: Shop, provider: WorkingProvider, link: str, browser: Browser
) -> None:
    anvil, party = shop.world.anvil, provider.party
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll_often, provider)
        await browser.ask("open", link.strip())
        await browser.see(".status[data-mode=live]", "connected")
        await browser.ask("type", "#message", "step by step")
        await browser.see("#send:not(:disabled)", "Send for at most")
        await looked_at(browser, "priced")
        await browser.ask("click", "#send")
        row = await offered(provider)
        tasks.cancel_scope.cancel()
    await browser.see(".steps .done:nth-child(1)", "Posted")
    await browser.see(".progress .said", "Waiting for the provider to claim the job")
    await looked_at(browser, "posted")
    assert (await party.run(party.claim(row["job_id"]))).status_code == 201
    await browser.see(".steps .done:nth-child(2)", "Claimed")
    await looked_at(browser, "claimed")
    await anvil.call("evm_setAutomine", False)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provider._run, row)  # ends with the block of its settle
            await browser.see(".answer .words", "pets yb pets")  # the provider reverses the text
            await browser.see(".steps .done:nth-child(3)", "Settled")
            assert await browser.ask("count", ".steps .done") == 3
            await looked_at(browser, "settled")
            await anvil.call("evm_setAutomine", True)
            await anvil.call("evm_mine")
    finally:
        await anvil.call("evm_setAutomine", True)
    await browser.see(".steps .done:nth-child(4)", "Final")
    await looked_at(browser, "final")
    assert await browser.ask("faults") == []
