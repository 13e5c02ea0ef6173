"""A real browser for testing the pages. Commands go line by line through tests/support/browser/driver.mjs."""

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
from anyio import to_thread

from tests.support.programs.found import node

ROOT: Final = Path(__file__).parents[3]
WEB: Final = ROOT / "tests" / "support" / "browser"
PICTURES: Final = ROOT / "build" / "web"
_PAGE_TIMEOUT_S: Final = 60.0


def missing() -> str | None:
    """Return the reason why no browser is available, or None."""
    if not (WEB / "node_modules" / ".ready").exists():
        return "no browser here: `make browser` takes one from npm"
    return None if node() is not None else "no browser here: no node"


@attrs.frozen
class Browser:
    process: "subprocess.Popen[str]"

    async def ask(self, command: str, *arguments: object) -> Any:
        return await to_thread.run_sync(self._ask, json.dumps([command, *arguments]))

    def _ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        raw = self.process.stdout.readline()
        assert raw, "the browser ended"
        answer = json.loads(raw)
        assert "error" not in answer, answer["error"]
        return answer["ok"]

    async def see(self, selector: str, words: str) -> None:
        """Wait until the selected element contains these words."""
        await self.ask("see", selector, words)

    async def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.ask("screenshot", str(PICTURES / f"{name}.png"))


@asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    runtime = node()
    assert runtime is not None
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "CHROMIUM") if name in os.environ}
    process = subprocess.Popen(  # noqa: ASYNC220 - it is talked to from threads
        [runtime, str(WEB / "driver.mjs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment | {"HOME": environment.get("HOME", "/tmp")},  # noqa: S108 - Chromium wants one to exist
    )
    try:
        browser = Browser(process)
        with anyio.fail_after(_PAGE_TIMEOUT_S):
            await to_thread.run_sync(browser.answer, abandon_on_cancel=True)
        yield browser
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
