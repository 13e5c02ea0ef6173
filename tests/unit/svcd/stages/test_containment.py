"""Unexpected exceptions, raised at every place where a task of svcd waits, end neither the daemon nor the task."""

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import structlog
import trio

from common.daemon import supervision
from svcd.journal.work import ModelWork, WorkOutput
from svcd.stages import health, uploader
from tests.support.fakes.market import Market
from tests.support.faults.foreign_errors import ForeignErrors, logged_exceptions
from tests.unit.svcd.stages.running import Backend, Running, config_for, started

pytestmark = pytest.mark.timeout(600)

QUIET_ROUNDS: Final = 3  # rounds without a new place, after which all places count as reached
LATENCY_S: Final = 0.05


@attrs.frozen
class Slow(httpx.AsyncBaseTransport):
    """A market that answers with a delay, so that tasks wait at each request."""

    inner: httpx.AsyncBaseTransport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await trio.sleep(LATENCY_S)
        return await self.inner.handle_async_request(request)


async def answer(work: ModelWork) -> WorkOutput:
    """Return results of which half must be uploaded."""
    await trio.sleep(LATENCY_S)
    return WorkOutput("x" * (2_000 if work.job_id[0] % 2 else 10), 10, {"units": 10})


async def test_foreign_errors_end_neither_daemon_nor_task(
    market: Market, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = ForeignErrors("svcd", apart_seconds=LATENCY_S / 4)
    started_tasks, ended_tasks = Counter[str](), Counter[str]()

    class Watching(supervision.Supervisor):
        async def run(self, task: str, loop: Callable[[], Awaitable[Any]]) -> Any:
            async def counted() -> Any:
                started_tasks[task] += 1
                try:
                    return await loop()
                finally:
                    ended_tasks[task] += 1

            return await super().run(task, errors.watch(task, counted))

    monkeypatch.setattr(health, "Supervisor", Watching)
    # each place fails once, which must not make the daemon unhealthy
    monkeypatch.setattr(supervision, "FAILING_AFTER_FAILURES", math.inf)
    monkeypatch.setattr(uploader, "MAX_INLINE_RESULT_BYTES", 1_000)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with logged_exceptions() as logged:
        config, backend = config_for(market, tmp_path / "state"), Backend(answer)
        async with started(config, market.now, Slow(market.transport), backend) as one:
            running = Running(market, one.ground, one.daemon, one.drain, backend)
            quiet = 0
            while quiet < QUIET_ROUNDS:
                before = len(errors.raised)
                jobs = [market.post(), market.post(), market.post(served=b"\x01" * 200)]
                for job in jobs:
                    await running.end_of(job)
                quiet = quiet + 1 if len(errors.raised) == before else 0
            errors.enabled = False
            for _ in range(4):
                assert await running.end_of(market.post()) == ("settled", None)
            assert one.ground.slots.held_slots == 0
            running_tasks = {task for task, starts in started_tasks.items() if starts > ended_tasks[task]}
    silent = [key for key, error in errors.raised.items() if error not in logged | errors.in_libraries]
    assert silent == []
    never_wait = {"catalogue", "runner:demo/image"}  # all models are known, and no image is ordered
    assert {task for task, _ in errors.raised} == started_tasks.keys() - never_wait
    assert running_tasks == started_tasks.keys() - {"catalogue"}
