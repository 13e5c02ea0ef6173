"""Unexpected exceptions at every place where a background task waits end neither the daemon nor the task."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import anyio
import asyncpg
import attrs
import httpx
import pytest

from common.daemon import supervision
from common.scalars import base64_of
from coordinatord.api.batches import worker
from coordinatord.api.files import files_sql
from coordinatord.api.webhooks import delivery
from coordinatord.base.metrics import REGISTRY
from coordinatord.run import app, janitor
from coordinatord.storage.database import locks
from coordinatord.storage.pins import objects_sql
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Body, Party, wallet_of
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged
from tests.integration.coordinatord.webhooks.receiver import receiving
from tests.support.faults.foreign_errors import ForeignErrors, logged_exceptions

pytestmark = pytest.mark.timeout(600)

SETTINGS: Final = {"WEBHOOKS_KEY": "5e" * 32, "WEBHOOKS_PRIVATE": "allow"}
QUIET_ROUNDS: Final = 3  # rounds without a new place, after which all places count as covered


@attrs.frozen
class WatchedCoordinator:
    """Coordinator with watched background tasks. `started` and `ended` count the runs of each task."""

    stage: Stage
    errors: ForeignErrors
    logged: set[BaseException]
    started: Counter[str]
    ended: Counter[str]

    @property
    def running(self) -> set[str]:
        return {task for task, starts in self.started.items() if starts > self.ended[task]}


@pytest.fixture
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart at once, and sweep all the time."""
    monkeypatch.setattr(supervision, "MAX_BACKOFF_S", 0.02)
    monkeypatch.setattr(supervision, "FAILING_AFTER_FAILURES", math.inf)  # each place fails once, so readiness stays on
    monkeypatch.setattr(locks, "ROLE_POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(janitor, "SWEEP_INTERVAL_S", 0.2)
    monkeypatch.setattr(worker, "MAX_BACKOFF_S", 0.05)
    for name in ("TURN_LEASE_S", "MIN_FAILURE_PAUSE_S", "MAX_FAILURE_PAUSE_S"):
        monkeypatch.setattr(delivery, name, 0.5)
    monkeypatch.setattr(delivery, "RETRY_DELAYS_S", [0.5] * len(delivery.RETRY_DELAYS_S))
    for module in (files_sql, objects_sql):  # leftovers of a failed upload, until it can be stored again
        monkeypatch.setattr(module, "REMOVAL_LEASE", timedelta(seconds=0.5))


@contextmanager
def closed_connections_forgiven() -> Iterator[None]:
    """Ignore asyncpg's reports about responses on connections closed during a statement."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), asyncpg.InternalClientError):
            (before or asyncio.AbstractEventLoop.default_exception_handler)(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


@pytest.fixture
async def watched_coordinator(
    world: World, database_url: str, short_intervals: None, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[WatchedCoordinator]:
    errors = ForeignErrors("coordinatord")
    started, ended = Counter[str](), Counter[str]()
    background_tasks = app.background_tasks

    def counting(task: str, loop: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        async def run() -> None:
            started[task] += 1
            try:
                await loop()
            finally:
                ended[task] += 1

        return run

    def watched_tasks(*arguments: Any) -> dict[str, supervision.TaskFunction]:
        loops = background_tasks(*arguments)
        return {task: counting(task, errors.watch(task, loop)) for task, loop in loops.items()}

    monkeypatch.setattr(app, "background_tasks", watched_tasks)
    seen: list[Seen] = []
    with logged_exceptions() as logged, errors.planted(), closed_connections_forgiven():
        async with staged(world, configured(world, database_url, **SETTINGS), seen, sweeps=True) as stage:
            yield WatchedCoordinator(stage, errors, logged, started, ended)
            errors.enabled = False


@attrs.frozen
class Activity:
    """Some work for every background task."""

    client: Party
    provider: Party
    batching: Batching

    async def round(self) -> None:
        jobs = [await self._post(), await self._post()]
        lines = [self.batching.submitter.line(), self.batching.submitter.line()]
        batch = await self.batching.create(*lines)
        jobs += [line["job_id"] for line in lines]
        for job in jobs:
            await until_done(lambda job=job: self.client.http.get(f"/v1/jobs/{job}"), 200)  # type: ignore[misc]
            await self._run(self.provider.claim(job))
        for job in jobs[::2]:
            await self._run(self.provider.settle(job, result=base64_of(b"sealed result")))
        for job in jobs[1::2]:
            await self._run(self.provider.fail(job))
        await self.batching.until(batch["id"], status="completed")

    async def _post(self) -> str:
        order = await self.client.paid()
        posted = await until_done(lambda: self.client.http.post("/v1/jobs", json=order), 201)
        job: str = posted.json()["job_id"]
        return job

    async def _run(self, op: Body) -> None:
        await until_done(lambda: self.provider.run(op), 201)


async def until_done(act: Callable[[], Awaitable[httpx.Response]], status: int) -> httpx.Response:
    """Repeat a request until its status is `status`, while responses are retryable."""
    with anyio.fail_after(120):
        while (answer := await act()).status_code != status:
            assert answer.status_code in (404, 503, 504), answer.text
            await anyio.sleep(0.05)
    return answer


@pytest.mark.long
async def test_foreign_errors_end_neither_daemon_nor_task(watched_coordinator: WatchedCoordinator) -> None:
    stage = watched_coordinator.stage
    wallets, registry = stage.world.wallets, stage.ground.config.addresses.job_registry
    client, provider = (
        Party(wallet_of(wallet), stage.ground.domains, registry, stage.http, wallet.box_key)
        for wallet in (wallets.with_role("client")[0], wallets.with_role("provider")[0])
    )
    await client.sign_in()
    await provider.sign_in("provider")
    activity = Activity(client, provider, await Batching.of(stage, client))
    async with receiving() as receiver:
        hook = {"url": receiver.url}
        assert (await stage.http.post("/v1/webhooks", json=hook, headers=client.authorization)).status_code == 200
        quiet_rounds = 0
        while quiet_rounds < QUIET_ROUNDS:
            before = len(watched_coordinator.errors.raised)
            await activity.round()
            quiet_rounds = quiet_rounds + 1 if len(watched_coordinator.errors.raised) == before else 0
        watched_coordinator.errors.enabled = False
        unlogged = [
            (task, place, error)
            for (task, place), error in watched_coordinator.errors.raised.items()
            if error not in watched_coordinator.logged | watched_coordinator.errors.in_libraries
            and not isinstance(error, OSError)
        ]
        assert unlogged == []
        assert len(watched_coordinator.errors.raised) > 150
        met = {task for task, _ in watched_coordinator.errors.raised}
        assert watched_coordinator.started.keys() - met == set()
        assert watched_coordinator.started.keys() - watched_coordinator.running == set()
        failures = {task: REGISTRY.get_sample_value("coordinatord_task_failures_total", {"task": task}) for task in met}
        assert all(failures.values()), failures
        told = len(receiver.got)
        await activity.round()
        await receiver.heard(told + 1)
