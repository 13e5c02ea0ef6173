"""Unexpected exceptions, raised at every place where a task of `svc serve` waits, do not end the server or its
loops."""

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from common.daemon import supervision
from svc.serve import attempts
from svc.serve.files import LocalFiles
from svc.serve.prices import Prices
from tests.support.faults.foreign_errors import ForeignErrors
from tests.unit.svc.serve.market import ServedMarket

QUIET_ROUNDS: Final = 3  # rounds without a new place, after which all places count as reached
CHAT: Final = "/v1/chat/completions"
# saved, because other tests of this folder disable them
KEEP_WARM, SWEEP_FOREVER = Prices.refresh_repeatedly, LocalFiles.remove_expired_repeatedly


async def test_foreign_errors_end_neither_server_nor_loop(
    market: ServedMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = ForeignErrors("svc", apart_seconds=0.0)
    running = Counter[str]()

    class Watching(supervision.Supervisor):
        def watched(self, task: str, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
            async def counted() -> Any:
                running[task] += 1
                try:
                    return await work()
                finally:
                    running[task] -= 1

            return errors.watch(task, counted)

        async def run(self, task: str, loop: Callable[[], Awaitable[Any]]) -> Any:
            return await super().run(task, self.watched(task, loop))

        async def run_once(self, task: str, work: Callable[[], Awaitable[object]]) -> None:
            await super().run_once(task, self.watched(task, work))

    monkeypatch.setattr(attempts, "Supervisor", Watching)
    monkeypatch.setattr(Prices, "refresh_repeatedly", KEEP_WARM)
    monkeypatch.setattr(LocalFiles, "remove_expired_repeatedly", SWEEP_FOREVER)
    async with market.served(tmp_path) as caller:
        quiet, number = 0, 0
        while quiet < QUIET_ROUNDS:
            before, number = len(errors.raised), number + 1
            question = {"model": "demo/chat", "messages": [{"role": "user", "content": f"number {number}"}]}
            answer = await caller.post(CHAT, question)
            assert answer.status in (200, 500, 502, 503), answer
            quiet = quiet + 1 if len(errors.raised) == before else 0
        await anyio.sleep(600)  # both loops reach their places
        errors.enabled = False
        question = {"model": "demo/chat", "messages": [{"role": "user", "content": "the last"}]}
        assert (await caller.post(CHAT, question)).status == 200
        assert {task for task, _ in errors.raised} >= {"purchase", "attempt", "prices", "expired files"}
        assert (running["prices"], running["expired files"]) == (1, 1)
