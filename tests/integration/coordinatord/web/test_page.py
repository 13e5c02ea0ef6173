"""The page in a real browser: a market's live state, without violating the content security policy."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import asyncpg
import attrs
import httpx
import pytest

from common.scalars import base64_of
from devnet.ports import pick_free
from devnet.world import World
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.running import Coordinator, running
from tests.integration.coordinatord.scene.stage import configured, environment
from tests.support.fakes.browser import Browser, browsing, missing

AT_LENGTH: Final = os.environ.get("WEB_CHECK") == "1"
LONG: Final = pytest.mark.skipif(not AT_LENGTH, reason="takes a minute: set WEB_CHECK=1")
pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

_CUT: Final = (
    "[...document.querySelectorAll('.scroll')].filter((each) => !each.closest('details')"
    " && each.scrollWidth > each.clientWidth).map((each) => each.getAttribute('aria-label'))"
)
HOSTILE: Final = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202egnp.exe'


@attrs.frozen
class Market:
    """A coordinator in a separate process, with its clients and providers."""

    coordinator: Coordinator
    client: Party
    provider: Party
    world: World
    database_url: str
    ports: tuple[int, int]

    @property
    def url(self) -> str:
        return self.coordinator.base_url

    async def execute(self, statement: str, *values: object) -> None:
        connection = await asyncpg.connect(self.database_url)
        await connection.execute(statement, *values)
        await connection.close()

    async def claim(self, job: str) -> None:
        answer = await self.provider.run(self.provider.claim(job))
        assert answer.status_code == 201, answer.text

    async def settle(self, job: str) -> None:
        answer = await self.provider.run(self.provider.settle(job, result=base64_of(b"the sealed result")))
        assert answer.status_code == 201, answer.text


def settings(world: World, database_url: str) -> dict[str, str]:
    return environment(
        world, database_url, ESCROW_MODE="static", OPERATOR_KEY="0x" + "17" * 32, GATEWAY_URL=world.pins.gateway
    )


@pytest.fixture
async def market(world: World, database_url: str) -> AsyncIterator[Market]:
    book, ports = configured(world, database_url).addresses, (pick_free(), pick_free())
    async with (
        running(settings(world, database_url), *ports) as coordinator,
        httpx.AsyncClient(base_url=coordinator.base_url, trust_env=False, timeout=30) as http,
    ):
        client, provider = (Party.at(world.wallets.with_role(role)[0], book, http) for role in ("client", "provider"))
        await provider.sign_in("provider")
        yield Market(coordinator, client, provider, world, database_url, ports)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        await browser.ask("look", {})
        yield browser


async def at_peace(browser: Browser, market: Market, *, expected: Callable[[str], bool] = lambda _: False) -> None:
    """Check that no other host was requested, no error occurred, and the page is accessible."""
    for url in await browser.ask("requested"):
        assert url.startswith((market.url, "data:")), url
    assert [fault for fault in await browser.ask("faults") if not expected(fault)] == []
    assert await browser.ask("axe") == []


def absent(fault: str) -> bool:
    """Return whether the console message is about an expected 403 or 404. Chromium logs all of them."""
    return "status of 40" in fault and any(path in fault for path in ("/why", "/evm/events"))


async def test_a_job_is_followed_through_its_life(market: Market, browser: Browser) -> None:
    await browser.ask("open", market.url)
    await browser.see("h1", "The job book")
    await browser.see(".empty", "No job has been posted yet")
    await browser.see(".status[data-mode=live]", "live")  # by events, not by polling
    posted = await market.client.post()
    job: str = posted["job_id"]
    await browser.see("tbody .badge", "Open")
    await browser.ask("click", "tbody a")
    await browser.see(".headline", "Waits for a provider")
    await browser.see("#waiting", "Why no provider has claimed it")
    assert job[2:] not in (await browser.ask("title"))[11:]
    await browser.see(".timeline", posted["tx_hash"][:8])
    await market.claim(job)
    await browser.see(".headline", "works on it")
    assert await browser.ask("count", "progress") == 1
    await market.settle(job)
    await browser.see(".headline", "The provider delivered the result")
    row = (await market.client.http.get(f"/evm/jobs/{job}")).json()
    await browser.see(".facts", "0.003045")  # provider 1020, fee 25, relaying 2000
    await browser.see(".facts", "Refunded")
    await browser.see(".facts", "of 0.005075 paid at the claim")
    await browser.see(".timeline li:first-child", f"Block {row['posted_block']} (")
    assert await browser.ask("count", ".timeline .hex") == 3
    await browser.see("#block", "as of block")
    await at_peace(browser, market, expected=absent)


@LONG
async def test_every_view_can_be_read_light_dark_and_on_a_phone(market: Market, browser: Browser) -> None:
    await fill(market)
    job = (await market.client.http.get("/evm/jobs?state=Claimed")).json()["jobs"][0]["job_id"]
    views = {
        "book": ("#/book", "tbody .badge"),
        "job": (f"#/job/{job}", ".timeline"),
        "models": ("#/models", "tbody .name"),
        "model": ("#/models/1", ".chart"),
        "providers": ("#/providers", ".capacity"),
        "provider": ("#/providers/1", "dl.facts"),
        "batches": ("#/batches", ".empty"),
        "buy": ("#/buy", ".lines"),
        "market": ("#/market", ".card"),
    }
    looks: dict[str, dict[str, Any]] = {
        "light": {"width": 1280, "height": 900},
        "dark": {"width": 1280, "height": 900, "dark": True},
        "tablet": {"width": 768, "height": 1024},
        "phone": {"width": 360, "height": 740},
    }
    cut: list[str] = []
    for look, options in looks.items():
        await browser.ask("look", options)
        for name, (path, shown) in views.items():
            await browser.ask("open", "about:blank")
            await browser.ask("open", f"{market.url}/{path}")
            await browser.see(shown, "")
            await browser.see("#connection", "live")
            await browser.picture(f"{name}-{look}")
            await at_peace(browser, market, expected=absent)
            wide = await browser.ask("evaluate", "document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{name} is wider than {look}"
            cut += [f"{name}, {look}: {each}" for each in await browser.ask("evaluate", _CUT)]
    assert cut == []


async def evaluated(browser: Browser, module: str, answer: str, expression: str) -> Any:
    """Evaluate an expression with a module of the page. `answer` is the response's body as an expression of `url`."""
    return await browser.ask(
        "evaluate",
        "(async () => {"
        f"  const asked = [], module = await import('/web/{module}');"
        "  globalThis.fetch = async (path) => {"
        "    const url = new URL(path, location); asked.push(String(url));"
        f"    return new Response(JSON.stringify({answer}), {{ headers: {{ 'content-type': 'application/json' }} }});"
        "  };"
        f"  return await ({expression})(module, asked);"
        "})()",
    )


async def test_search_with_too_many_matches_names_what_to_type(market: Market, browser: Browser) -> None:
    await browser.ask("open", market.url)
    many = "{ matches: [{ kind: 'job', id: '0xabcd00' }], more: true }"
    found = await evaluated(browser, "search.js", many, "(search) => search.find('0xabcd…ef')")
    assert found["wrong"].startswith("Too many ids begin with 0xabcd to find one that ends with ef.")


async def test_times_of_the_newest_blocks_are_kept(market: Market, browser: Browser) -> None:
    await browser.ask("open", market.url)
    times = "{ blocks: url.searchParams.get('numbers').split(',').map((number) => ({ number, time: '1' })) }"
    read = (
        "async ({ blockTimes }, asked) => {"
        "  const hundred = (from) => blockTimes(Array.from({ length: 100 }, (_, n) => from + n));"
        "  for (let n = 0; n < 22; n++) await hundred(1 + 100 * n);"
        "  const before = asked.length, kept = await hundred(301);"
        "  return [asked.length - before, kept.size];"
        "}"
    )
    assert await evaluated(browser, "blocks.js", times, read) == [0, 100]


@LONG
async def test_book_is_searched_by_the_beginning_of_an_id(market: Market, browser: Browser) -> None:
    job = (await market.client.post())["job_id"]
    other = (await market.client.post())["job_id"]

    async def search(text: str) -> None:
        await browser.ask("open", "about:blank")
        await browser.ask("open", f"{market.url}/#/book")
        await browser.see("tbody .badge", "Open")
        await browser.ask("type", "#filter-who", text)
        await browser.ask("press", "Enter")

    await search(f"{job[:8]}…{job[-4:]}")  # as the page shows it
    await browser.see("h1", job[:8])
    await search(market.client.address[:8])
    value = "document.querySelector('#filter-who').value"
    with anyio.fail_after(10):
        while await browser.ask("evaluate", value) != market.client.address:  # noqa: ASYNC110 - the event is in the page
            await anyio.sleep(0.05)
    await browser.see("tbody tr:nth-child(2)", market.client.address[:8])
    await search("0xffffffffff")
    await browser.see("#found", "No job, owner or provider begins with 0xffffffffff")
    await search("0x1")
    await browser.see("#found", "at least four")
    await market.execute("update jobs set job_id = '\\xabcdef'::bytea || substring(job_id from 4)")
    await search("abcdef")
    await browser.see("#found", "2 ids begin with 0xabcdef")
    assert await browser.ask("axe") == []
    await browser.picture("book-search")
    await browser.ask("click", "#found li:last-child button")
    await browser.see("h1", "0xabcdef")
    assert job != other


@LONG
async def test_lines_to_buy_work_as_they_are_shown(market: Market, browser: Browser) -> None:
    """The page's lines name this market, and the one for a session token prints one."""
    await browser.ask("open", f"{market.url}/#/buy")
    await browser.see("main", f"svc config set base_url {market.url}")
    await browser.ask("open", f"{market.url}/#/batches")
    await browser.see(".lines", "SyncClient")
    line = await browser.ask("text", ".lines pre")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SVC_WALLET_KEY": market.world.wallets.with_role("client")[0].private_key,
    }
    printed = await anyio.to_thread.run_sync(
        lambda: subprocess.run(["/bin/sh", "-c", line], env=environment, capture_output=True, text=True, check=True)
    )
    token = printed.stdout.strip()
    await browser.ask("type", "#session", token)
    await browser.ask("press", "Enter")
    await browser.see(".empty", "This wallet has no batches")


@LONG
async def test_hostile_names_are_text(market: Market, browser: Browser) -> None:
    await market.execute("update models set name = $1, owned_by = $1", HOSTILE)
    await market.execute("update providers set evidence = $1", HOSTILE.encode())
    await market.client.post()
    for path in ("#/book", "#/models", "#/models/1"):
        await browser.ask("open", "about:blank")
        await browser.ask("open", f"{market.url}/{path}")
        await browser.see("main", "<img src=x")
        assert await browser.ask("count", "main img, main script") == 0
        assert (await browser.ask("title")) not in ("1", "2")
        await at_peace(browser, market, expected=absent)
    await browser.ask("open", f"{market.url}/#/providers/1")
    await browser.see("main", "Evidence")
    assert await browser.ask("count", "main img, main script") == 0


@LONG
async def test_claim_removed_by_a_reorg_leaves_the_page(market: Market, browser: Browser) -> None:
    anvil = market.world.anvil
    job = (await market.client.post())["job_id"]
    await browser.ask("open", f"{market.url}/#/job/{job}")
    await browser.see(".headline", "Waits for a provider")
    snapshot = await anvil.call("evm_snapshot")
    await market.claim(job)
    await browser.see(".headline", "works on it")
    await anvil.call("evm_setAutomine", False)
    try:
        await anvil.call("evm_revert", snapshot)
        await anvil.call("anvil_dropAllTransactions")
        await anvil.call("evm_mine")
        await anvil.call("evm_mine")
        await browser.see(".headline", "Waits for a provider")
        await browser.picture("job-taken-back")
    finally:
        await anvil.call("evm_setAutomine", True)
    await anvil.call("evm_mine")
    await at_peace(browser, market, expected=absent)


@LONG
async def test_a_lost_connection_is_told_and_made_up_for(market: Market, browser: Browser) -> None:
    await browser.ask("open", market.url)
    await browser.see(".empty", "No job has been posted yet")
    market.coordinator.process.kill()
    market.coordinator.process.wait()
    await browser.see("#connection", "reconnecting")
    await browser.picture("book-reconnecting")
    async with running(settings(market.world, market.database_url), *market.ports):
        await market.client.post()
        await browser.see("#connection", "live")
        await browser.see("tbody .badge", "Open")
    faults = [fault for fault in await browser.ask("faults") if not absent(fault)]
    assert all("ERR_CONNECTION_REFUSED" in fault or "ERR_INCOMPLETE" in fault or "EMPTY" in fault for fault in faults)


@LONG
async def test_the_page_is_used_with_the_keyboard_alone(market: Market, browser: Browser) -> None:
    job = (await market.client.post())["job_id"]
    await browser.ask("open", market.url)
    await browser.see("tbody .badge", "Open")
    await browser.ask("press", "Tab")
    assert await browser.ask("focused") == "Skip to the content"
    for _ in range(3):
        await browser.ask("press", "Tab")
    assert await browser.ask("focused") == "Models"
    await browser.ask("press", "Enter")
    await browser.see("h1", "Models")
    assert await browser.ask("focused") == "Models"  # the heading, so that a screen reader announces the new page
    await browser.ask("open", f"{market.url}/#/book")
    await browser.see("tbody .badge", "Open")
    await browser.ask("evaluate", "document.querySelector('tbody a').focus()")
    await market.client.post()
    await browser.see("tbody tr:nth-child(2) .badge", "Open")
    assert job[:8] in await browser.ask("focused")  # the session was renewed without a new login


@LONG
async def test_the_operators_page_tells_what_the_metrics_say(market: Market, browser: Browser) -> None:
    await market.client.post()
    url = market.coordinator.metrics_url.removesuffix("metrics")
    looks: dict[str, dict[str, Any]] = {
        "light": {},
        "dark": {"dark": True},
        "tablet": {"width": 768, "height": 1024},
        "phone": {"width": 360, "height": 740},
    }
    for look, options in looks.items():
        await browser.ask("look", options)
        await browser.ask("open", url)
        await browser.see("#connection", "live")
        await browser.see(".headline", "Nothing is wrong")
        await browser.see("main", "has it")
        await browser.see(".charts", "Gas price")
        await browser.see("main", "Base fee of the next block")
        await browser.picture(f"operators-{look}")
        assert await browser.ask("faults") == []
        assert await browser.ask("axe") == []
        assert all(each.startswith((url, "data:")) for each in await browser.ask("requested"))
    market.coordinator.process.kill()
    market.coordinator.process.wait()
    await browser.see("#connection", "does not answer")
    await browser.see("main", "Base fee of the next block")  # the last figures stay
    async with running(settings(market.world, market.database_url), *market.ports):
        await browser.see("#connection", "live")


async def fill(market: Market) -> None:
    """Fill a market with history: jobs in every state, and changing prices."""
    rates = (900_000, 1_000_000, 1_200_000, 1_100_000, 1_600_000, 1_400_000)
    jobs = [
        (await market.client.post(rate_in=rate, rate_out=2 * rate + 70_000 * n))["job_id"]
        for n, rate in enumerate(rates * 2)
    ]
    for job in jobs[:10]:
        await market.claim(job)
    for job in jobs[:8]:
        await market.settle(job)
    failed = await market.provider.run(market.provider.fail(jobs[8]))
    assert failed.status_code == 201
    cancelled = await market.client.http.post(f"/v1/jobs/{jobs[10]}/cancel", json=market.client.cancel(jobs[10]))
    assert cancelled.status_code == 200
    quotes = [(1, 3600, 900_000, 1_900_000), (1, 86400, 700_000, 1_500_000)]
    asked = await market.provider.publish(market.provider.asks(1, *quotes))
    assert asked.status_code in (200, 201), asked.text
    await market.execute("update providers set active_jobs = capacity(providers) where provider_id = 2")
    # Spread them over a day, so that the chart has data.
    await market.execute("update jobs set claimed_at = claimed_at - (86400 - 7200 * (ordinal % 12)) where state = 2")
