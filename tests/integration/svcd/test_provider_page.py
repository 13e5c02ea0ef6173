"""The provider's page in a real browser: the life of a job, a failure, and a restart of the daemon."""

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import httpx
import pytest

from svcd.journal.journal import JOURNAL_FILE
from tests.integration.svcd.daemon.conftest import book, scene  # noqa: F401 - fixtures
from tests.integration.svcd.daemon.scene import Scene, terminated, until
from tests.support.fakes.browser import Browser, browsing, missing

LONG: Final = pytest.mark.skipif(os.environ.get("WEB_CHECK") != "1", reason="takes a minute: set WEB_CHECK=1")
pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

LOOKS: Final[dict[str, dict[str, Any]]] = {
    "phone": {"width": 360, "height": 740},
    "tablet": {"width": 768, "height": 1024},
    "light": {"width": 1280, "height": 900},
    "dark": {"width": 1280, "height": 900, "dark": True},
}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        await browser.ask("look", {})
        yield browser


@contextmanager
def hanging(scene: Scene) -> Iterator[None]:  # noqa: F811
    """Keep jobs with the input "hang" running."""
    (scene.directory / "hang").touch()
    try:
        yield
    finally:
        (scene.directory / "hang").unlink()


def url_of(scene: Scene) -> str:  # noqa: F811 - the fixture's name
    return f"http://127.0.0.1:{scene.metrics_port}/"


async def at_peace(browser: Browser, url: str) -> None:
    """Check that no other host was requested, no error occurred, and the page is accessible."""
    assert all(each.startswith((url, "data:")) for each in await browser.ask("requested"))
    assert await browser.ask("faults") == []
    assert await browser.ask("axe") == []


async def opened(browser: Browser, url: str) -> None:
    """Open the page as soon as the daemon listens."""

    async def listens() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False) as http:
                return (await http.get(url)).is_success
        except httpx.TransportError:
            return False

    await until(listens)
    await browser.ask("open", url)
    await browser.see("#connection", "live")


async def test_job_is_followed_until_it_is_earned(scene: Scene, browser: Browser) -> None:  # noqa: F811
    url = url_of(scene)
    with scene.daemon() as daemon:
        await opened(browser, url)
        await browser.see("#state", "Ready")
        await browser.see("#jobs", "No job in progress")
        with hanging(scene):
            job = await scene.post("hang")
            await browser.see("#jobs", job[:8])
            await browser.see("#jobs", "Running")
            await browser.see("#state", "1 job in progress")
        assert (await scene.ended(job))["status"] == "completed"
        await browser.see("#jobs", "No job in progress")
        await browser.see("#figures", "1 settled")
        assert await browser.ask("count", "#earnings .bar-of") == 2  # earned and settled, today
        await browser.see("#checks", "checks")
        await at_peace(browser, url)
        assert await terminated(daemon) == 0
        await browser.see("#connection", "svcd does not answer")
        await browser.see("#figures", "1 settled")  # the last figures stay
    with scene.daemon():
        await browser.see("#connection", "live")
        await browser.see("#figures", "1 settled")


@LONG
async def test_page_with_history_is_legible_at_every_size(scene: Scene, browser: Browser) -> None:  # noqa: F811
    url = url_of(scene)
    with hanging(scene), scene.daemon():
        await opened(browser, url)
        for _ in range(3):
            await scene.post("hang")
        failed = await scene.post(plaintext=b"no envelope")
        assert (await scene.ended(failed))["status"] == "failed"
        add_history(scene)
        await browser.see("#failures", "malformed_envelope")
        await browser.see("#checks", "checks")
        await browser.see("#jobs tbody tr:nth-child(3)", "Running")
        for look, options in LOOKS.items():
            await browser.ask("look", options)
            await browser.ask("open", "about:blank")
            await browser.ask("open", url)
            await browser.see("#checks .headline", "checks")
            await browser.see("#earnings", "Earned by day")
            await browser.picture(f"svcd-{look}")
            assert await browser.ask("evaluate", "document.documentElement.scrollWidth - innerWidth") <= 0, look
            await browser.ask("click", "#checks summary")
            await at_peace(browser, url)
            await browser.picture(f"svcd-{look}-checks")


@LONG
async def test_withheld_claims_are_explained(scene: Scene, browser: Browser) -> None:  # noqa: F811
    """The registry has another box key than the daemon."""
    await scene.provider.sign_in("provider")
    other = scene.provider.set_identity(b"\x07" * 32, b"{}")
    assert (await scene.provider.run(other)).status_code == 201
    with scene.daemon():
        await opened(browser, url_of(scene))
        await browser.see("#idle", "Box key differs")
        await browser.see("#idle", "svcd identity")
        await browser.see("#checks .notice", "Box key")
        await at_peace(browser, url_of(scene))
        await browser.picture("svcd-withheld")


def add_history(scene: Scene) -> None:  # noqa: F811
    """Give the journal a month of days and standing."""
    path = scene.directory / "state" / JOURNAL_FILE
    with closing(sqlite3.connect(path)) as connection, connection:
        for model, most in (("demo/text-small", 40), ("demo/image", 12)):
            connection.execute(
                "with recursive n(n) as (select 1 union all select n + 1 from n where n < 29)"
                " insert or ignore into days select date('now', '-' || n || ' days'), ?, (n * 7) % ?,"
                " cast(((n * 7) % ?) * 31250 as text), n % 5 = 0 from n",
                (model, most, most),
            )
        connection.execute(
            "with recursive n(n) as (select 1 union all select n + 1 from n where n < 60)"
            " insert or ignore into standing select unixepoch('now') / 3600 - 12 * n, 500 - 2 * n + n % 7,"
            " 288 - 24 * (n / 15) from n"
        )
