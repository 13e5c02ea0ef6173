"""The page of `svc serve` in a real browser, in a complete market: every view over the whole life of a job."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import anyio
import attrs
import httpx
import pytest

from devnet.ports import pick_free
from tests.e2e.svc.conftest import Market
from tests.support.fakes.browser import Browser, browsing, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
AT_LENGTH: Final = os.environ.get("WEB_CHECK") == "1"
LINK: Final = re.compile(r"page: (\S+)#/open/(\S+)\s")
LONG: Final = pytest.mark.skipif(not AT_LENGTH, reason="takes a minute: set WEB_CHECK=1")

TEXT, EMBED, IMAGE = "demo/text-small", "demo/embed-small", "demo/image-small"
PROGRAM: Final = str(Path(sys.executable).with_name("svc"))
WIDTHS: Final = {"phone": 360, "tablet": 768, "desk": 1280}
HOSTILE: Final = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
_WIDER: Final = "document.documentElement.scrollWidth - innerWidth"
_CUT: Final = (
    "[...document.querySelectorAll('.scroll')].filter((each) => !each.closest('details')"
    " && each.scrollWidth > each.clientWidth).map((each) => each.getAttribute('aria-label'))"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@attrs.define
class Server:
    """`svc serve`, which a test may kill and start again on the same port."""

    environment: dict[str, str]
    state: Path
    port: int
    process: "subprocess.Popen[str] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        config = self.state.with_name("serve.toml")
        config.write_text(f"[models.'{HOSTILE}']\nmodel = '{TEXT}'\n")
        config.chmod(0o600)
        command = [PROGRAM, "serve", "--port", str(self.port), "--state", str(self.state), "--config", str(config)]
        self.process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("base_url: ")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        with self.process:
            self.process.send_signal(number)

    def link(self) -> str:
        command = [PROGRAM, "serve", "link", "--state", str(self.state)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def server(market: Market, tmp_path: Path) -> Iterator[Server]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    server = Server(clean | market.environment, tmp_path / "state", pick_free())
    server.start()
    yield server
    server.stop(signal.SIGTERM)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with browsing() as browser:
        await browser.ask("look", {})
        yield browser


async def opened(browser: Browser, server: Server) -> None:
    await browser.ask("open", server.link())
    await browser.see("h1", "Ask a model")
    await browser.see(".status[data-mode=live]", "connected")


async def ask(browser: Browser, model: str, words: str) -> None:
    await browser.ask("choose", "#model", model)
    await browser.ask("type", "#message", words)
    await browser.see("#send:not(:disabled)", "Send for at most")
    await browser.ask("press", "Enter")


async def view(browser: Browser, server: Server, path: str) -> None:
    await browser.ask("evaluate", f"location.hash = {json.dumps(path)}")


async def at_peace(browser: Browser, server: Server, *, expected: Callable[[str], bool] = lambda _: False) -> None:
    """Check that no other host was requested, no error occurred, and the page is accessible and fits the screen."""
    for url in await browser.ask("requested"):
        assert url.startswith((server.url, "data:", f"blob:{server.url}")), url
    assert [fault for fault in await browser.ask("faults") if not expected(fault)] == []
    assert await browser.ask("axe") == []
    assert await browser.ask("evaluate", _WIDER) <= 0
    assert await browser.ask("evaluate", _CUT) == []


async def test_chat_is_priced_answered_and_proved(server: Server, browser: Browser, tmp_path: Path) -> None:
    await opened(browser, server)
    assert await browser.ask("url") == f"{server.url}#/ask"  # the used link is gone
    await browser.ask("choose", "#model", TEXT)
    await browser.ask("type", "#message", "hello sealed world")
    await browser.see("#price", "Only provider 1 can read it")
    await browser.see("#send:not(:disabled)", "Send for at most 0.")
    await browser.ask("press", "Enter")
    await browser.see(".turn .answer", "hello sealed world")  # the demo provider echoes
    await browser.see(".progress .steps .done:nth-child(4)", "Final")
    await browser.see(".progress .said", "Final on the chain. It cost 0.")
    await at_peace(browser, server)
    await browser.ask("click", ".progress a")
    await browser.see(".headline", "Final on the chain")
    await browser.ask("downloads", str(tmp_path))
    await browser.ask("click", "#receipt")
    await browser.see("main", "Saved.")
    with anyio.fail_after(30):
        while not (receipts := [path async for path in anyio.Path(tmp_path).glob("*.receipt.json")]):  # noqa: ASYNC110 - the event is in the browser
            await anyio.sleep(0.05)
    (receipt,) = receipts
    verify = [PROGRAM, "receipt", "verify", str(receipt)]
    assert (await anyio.run_process(verify, env=server.environment, check=False)).returncode == 0
    await browser.ask("click", "#verify")
    await browser.see("main", "Verified")
    await at_peace(browser, server)
    await view(browser, server, "#/spending")
    await browser.see(".share-bars", "playground")
    await browser.see(".budgets", "left")
    assert await browser.ask("count", ".chart .bar-of") == 2  # spent and jobs, of this day
    await view(browser, server, "#/wallet")
    await browser.see(".balance", "")
    assert await browser.ask("count", "svg.qr path") == 1
    stored = json.dumps(await browser.ask("evaluate", "({...localStorage, page: document.documentElement.outerHTML})"))
    secrets = [(server.state / name).read_text().strip() for name in ("serve.key", "page.secret")]
    assert not any(secret in stored for secret in secrets)


def read_until(terminal: int, pattern: re.Pattern[str]) -> re.Match[str]:
    """Read from a pseudo-terminal until its text has the pattern."""
    text = ""
    while (found := pattern.search(text)) is None:
        text += os.read(terminal, 1 << 16).decode()
    return found


async def test_terminal_shows_a_link_that_opens_the_page(market: Market, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    command = [PROGRAM, "serve", "--port", "0", "--state", str(tmp_path / "state")]
    ours, theirs = pty.openpty()
    variables = clean | market.environment | {"COLUMNS": "40", "TERM": "xterm"}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=theirs, text=True)  # noqa: ASYNC220 - read below
    try:
        assert process.stdout is not None
        base_url = (await anyio.to_thread.run_sync(process.stdout.readline)).split()[1]
        shown = await anyio.to_thread.run_sync(read_until, ours, LINK)
        async with httpx.AsyncClient(trust_env=False) as http:
            opened = await http.post(f"{shown[1]}page/session", headers={"x-svc-page": shown[2]})
    finally:
        process.terminate()
        process.communicate()
    os.close(ours)
    os.close(theirs)
    assert base_url == f"{shown[1]}v1"
    assert (opened.status_code, set(opened.json())) == (200, {"token"})


async def fill(browser: Browser, server: Server, folder: Path) -> str:
    """Buy one answer of each kind and a batch. Return the path of the batch's view."""
    await opened(browser, server)
    await ask(browser, EMBED, "a seal")
    await browser.see(".answer", "Numbers")
    await ask(browser, IMAGE, "a seal on a rock")
    await browser.see(".answer .images", "Save the image")
    await ask(browser, TEXT, "Why are seals grey?")
    await browser.see(".answer .words", "Why are seals grey?")
    body = {"model": TEXT, "messages": [{"role": "user", "content": "one of a batch"}]}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = folder / "<b>lines.jsonl"
    lines.write_text("".join(json.dumps({**line, "custom_id": f"line-{n}"}) + "\n" for n in range(3)))
    await view(browser, server, "#/batches")
    await browser.ask("attach", "#file", str(lines))
    await browser.see("#price", "3 lines cost 0.")
    await browser.see("#start:not(:disabled)", "Start for at most 0.")
    await browser.ask("click", "#start")
    await browser.see(".headline", "3 of 3 lines have ended")
    await browser.see(".headline .badge", "Completed")
    return str(await browser.ask("evaluate", "location.hash"))


@LONG
@pytest.mark.timeout(900)  # 42 pictures, each checked for accessibility
async def test_every_view_at_three_widths_light_and_dark(server: Server, browser: Browser, tmp_path: Path) -> None:
    batch = await fill(browser, server, tmp_path)
    await view(browser, server, "#/jobs")
    await browser.see("tbody .badge", "Paid")
    job = await browser.ask("evaluate", "document.querySelector('tbody a[href^=\"#/jobs/0x\"]').getAttribute('href')")
    views = {
        "ask": ("#/ask", ".turn .steps"),
        "batches": ("#/batches", "tbody .badge"),
        "batch": (batch, "#output"),
        "jobs": ("#/jobs", "tbody .badge"),
        "job": (str(job), ".steps"),
        "spending": ("#/spending", ".share-bars"),
        "wallet": ("#/wallet", ".balance"),
    }
    for name, (path, shown) in views.items():
        for width, pixels in WIDTHS.items():
            for dark in (False, True):
                await browser.ask("look", {"width": pixels, "height": 800, "dark": dark})
                await view(browser, server, "#/nowhere")
                await view(browser, server, path)
                await browser.see(shown, "")
                await browser.picture(f"playground-{name}-{width}-{'dark' if dark else 'light'}")
                await at_peace(browser, server)


@LONG
async def test_batch_is_priced_before_it_is_started(server: Server, browser: Browser, tmp_path: Path) -> None:
    def write(*models: str) -> str:
        lines = [
            {"custom_id": str(n), "method": "POST", "url": "/v1/responses", "body": {"model": model, "input": "a seal"}}
            for n, model in enumerate(models)
        ]
        file = tmp_path / f"{len(models)}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(file)

    await opened(browser, server)
    await view(browser, server, "#/batches")
    await browser.see("#price", "shown here before you start")
    assert await browser.ask("count", "#start:disabled") == 1
    await browser.ask("attach", "#file", write(TEXT, "demo/none", TEXT))
    await browser.see("#price", "1 of 3 lines would be refused")
    await browser.see("#refused", "demo/none")
    assert await browser.ask("count", "#start:disabled") == 1
    await browser.picture("playground-batch-refused")
    await at_peace(browser, server)
    await browser.ask("attach", "#file", write(TEXT, TEXT))
    await browser.see("#start:not(:disabled)", "Start for at most 0.")
    await browser.see("#price", f"{TEXT}: 2 lines")
    assert await browser.ask("count", "#refused tr") == 0
    await browser.picture("playground-batch-priced")
    await at_peace(browser, server)
    await browser.ask("click", "#start")
    await browser.see(".headline", "2 of 2 lines have ended")


@LONG
async def test_hostile_names_and_answers_are_text(server: Server, browser: Browser) -> None:
    await opened(browser, server)
    await ask(browser, HOSTILE, f"{HOSTILE}</p>")
    await browser.see(".answer .words", "<img src=x")
    for path in ("#/jobs", "#/spending"):
        await view(browser, server, path)
        await browser.see("main", "<img src=x")
        assert await browser.ask("count", "main img, main script") == 0
    assert await browser.ask("title") not in ("1", "2")
    await at_peace(browser, server)


@LONG
async def test_restart_is_shown_and_the_session_continues(server: Server, browser: Browser) -> None:
    await opened(browser, server)
    await browser.ask("choose", "#model", TEXT)
    await browser.ask("type", "#message", "across a restart")
    await browser.see("#send:not(:disabled)", "Send for at most")
    server.stop()
    await browser.ask("press", "Enter")
    await browser.see("#connection", "reconnecting")
    await browser.see(".answer", "The connection to svc serve was lost")
    await browser.picture("playground-reconnecting")
    server.start()
    await browser.see("#connection", "connected")
    await browser.see(".answer .words", "across a restart")  # sent again, without a new link
    await view(browser, server, "#/jobs")
    await browser.see("tbody .badge", "Paid")
    faults = await browser.ask("faults")
    assert all("ERR_" in fault for fault in faults)


@LONG
async def test_used_link_is_refused_and_a_new_one_opens_the_page(server: Server, browser: Browser) -> None:
    used = server.link()
    await browser.ask("open", used)
    await browser.see(".status[data-mode=live]", "connected")
    await browser.ask("evaluate", "localStorage.clear()")
    await browser.ask("open", "about:blank")
    await browser.ask("open", used)
    await browser.see(".notice", "svc serve link")
    await browser.see("#connection", "locked")
    await browser.picture("playground-locked")
    await opened(browser, server)
    await view(browser, server, "#/wallet")
    await browser.see("#lock", "Lock this page")
    await browser.ask("click", "#lock")
    await browser.see(".notice", "svc serve link")
    await browser.see("#connection", "locked")


@LONG
async def test_the_page_is_used_with_the_keyboard_alone(server: Server, browser: Browser) -> None:
    await opened(browser, server)
    await browser.ask("reload")
    await browser.see(".status[data-mode=live]", "connected")
    await browser.ask("press", "Tab")
    assert await browser.ask("focused") == "Skip to the content"
    await browser.ask("press", "Tab")
    await browser.ask("press", "Tab")
    await browser.ask("press", "Tab")
    assert await browser.ask("focused") == "Batches"
    await browser.ask("press", "Enter")
    await browser.see("h1", "Batches")
    assert await browser.ask("focused") == "Batches"
    await view(browser, server, "#/ask")
    await browser.see("h1", "Ask a model")
    await browser.ask("evaluate", "document.querySelector('#message').focus()")
    await browser.ask("type", "#message", "by keyboard")
    await browser.see("#send:not(:disabled)", "Send for at most")
    await browser.ask("press", "Enter")
    await browser.see(".answer .words", "by keyboard")
    assert await browser.ask("evaluate", "document.activeElement.id") == "message"
