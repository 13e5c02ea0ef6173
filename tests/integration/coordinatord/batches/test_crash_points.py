"""Kill a batch worker at each place where it waits, and restart it. Each line of a batch must end exactly once.

By default a few batches meet one crash after another, until all places are covered. With `CRASH_POINTS=apart` (`make
crash-points`) each place gets a separate batch and a single crash.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anyio
import attrs
import pytest

from common.scalars import base64_of
from coordinatord.api.batches.worker import BatchWorker
from coordinatord.run import app
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Body, Party
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, staged, until
from tests.support.faults.crash_points import CrashPoints
from tests.support.invariants.batches import broken_batches
from tests.support.invariants.jobs import job_violations
from tests.support.invariants.relays import relay_violations

APART: Final = os.environ.get("CRASH_POINTS") == "apart"
_BATCHES: Final = "coordinatord/api/batches/"
# Modules in which crashes must occur: from reading lines to writing output files.
STEPS: Final = tuple(
    f"{_BATCHES}{step}.py"
    for step in ("worker", "expansion", "line_containers", "lines_sql", "posts_sql", "work_sql", "output")
)


@attrs.frozen
class Scene:
    """`ends` ends the two jobs of a batch. A batch is read in two portions."""

    on: Stage
    batching: Batching
    provider: Party
    points: CrashPoints
    jobs: list[str] = attrs.field(factory=list)

    async def deaths_of_one(self, ends: Callable[["Scene", Body, list[str]], Awaitable[None]], status: str) -> int:
        """Return the number of crashes until the batch was done."""
        lines = await self._lines()
        jobs = [line["job_id"] for line in lines]
        self.jobs.extend(jobs)
        batch = await self.batching.create(lines[0], b"no json", lines[1])
        deaths, done, life = 0, False, anyio.CancelScope()

        async def others() -> None:
            nonlocal done
            await ends(self, batch, jobs)
            await self.batching.until(batch["id"], status=status)
            done = True
            life.cancel()

        worker = self._worker()
        async with anyio.create_task_group() as around:
            around.start_soon(others)
            while not done:
                life = anyio.CancelScope()
                if deaths and APART:
                    with life:
                        await worker.run()
                elif await self.points.live(life, worker.run) is not None:
                    deaths += 1
        return deaths

    async def _lines(self) -> list[Body]:
        """Return one line with an inline container and one whose container was uploaded before."""
        uploaded = await self.batching.upload_container()
        named = self.batching.submitter.of_container(uploaded.content)
        del named["container"]
        return [self.batching.submitter.line(), named | {"container_cid": uploaded.cid}]

    def _worker(self) -> BatchWorker:
        worker = app.build_batch_worker(self.on.ground)
        return attrs.evolve(worker, expander=attrs.evolve(worker.expander, max_lines=2))


async def settled_and_failed(scene: Scene, batch: Body, jobs: list[str]) -> None:
    provider, http = scene.provider, scene.on.http
    settles, fails = jobs
    for job in jobs:
        await until(lambda job=job: http.get(f"/v1/jobs/{job}"), 200)  # type: ignore[misc]
        assert (await provider.run(provider.claim(job))).status_code == 201
    assert (await provider.run(provider.settle(settles, result=base64_of(b"sealed result")))).status_code == 201
    assert (await provider.run(provider.fail(fails))).status_code == 201


async def cancelled(scene: Scene, batch: Body, jobs: list[str]) -> None:
    """Cancel the batch after its posts were queued. Without a relayer they stay queued."""
    await scene.batching.until(batch["id"], status="in_progress")
    assert (await scene.batching.cancel(batch["id"])).status_code == 200


@pytest.fixture
async def on(world: World, database_url: str) -> AsyncIterator[Stage]:
    """A coordinator without relayer and batch workers."""
    seen: list[Seen] = []
    async with staged(world, configured(world, database_url), seen, relayer=False) as stage:
        yield stage


@pytest.fixture
async def scene(on: Stage, world: World) -> Scene:
    owner, provider = (
        Party.at(world.wallets.with_role(role)[0], on.ground.config.addresses, on.http)
        for role in ("client", "provider")
    )
    await owner.sign_in()
    await provider.sign_in("provider")
    return Scene(on, await Batching.of(on, owner), provider, CrashPoints("coordinatord", (_BATCHES,)))


async def deaths_until_none(
    scene: Scene, ends: Callable[[Scene, Body, list[str]], Awaitable[None]], status: str
) -> int:
    """Run batches until one meets no new crash point. Return the number of batches."""
    deaths = [await scene.deaths_of_one(ends, status)]
    while deaths[-1]:
        deaths.append(await scene.deaths_of_one(ends, status))
    lines = [line for place in scene.points.met for line in place]
    assert [step for step in STEPS if not any(line.startswith(step) for line in lines)] == []
    assert sum(deaths) == len(scene.points.met) > 40
    assert await broken_batches(scene.on.ground.database, scene.on.ground.pins) == []
    return len(deaths)


@pytest.mark.long
@pytest.mark.timeout(600 if APART else 300)
async def test_crashing_worker_posts_and_ends_each_line_once(on: Stage, scene: Scene) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.run_relay_task, on.ground)
        batches = await deaths_until_none(scene, settled_and_failed, "completed")
        tasks.cancel_scope.cancel()
    assert await on.fetchval("select count(*) from relays where kind = 'post'") == 2 * batches
    assert await on.fetchval("select count(*) from relays where state <> 'mined'") == 0
    assert await on.fetchval("select count(*) from batches where (completed, failed) = (1, 2)") == batches
    assert await on.fetchval("select count(*) from files where purpose = 'batch_output'") == 2 * batches
    promised = {bytes.fromhex(job[2:]) for job in scene.jobs}
    assert await job_violations(on.ground.rpc, on.ground.config.addresses, promised=promised) == []
    async with on.ground.database.connection() as connection:
        assert await relay_violations(connection, on.ground.rpc, stuck_after=0) == []  # type: ignore[arg-type]


@pytest.mark.timeout(600 if APART else 300)
async def test_crashing_worker_cancels_each_line_of_a_batch(on: Stage, scene: Scene) -> None:
    batches = await deaths_until_none(scene, cancelled, "cancelled")
    assert await on.fetchval("select count(*) from batches where (completed, failed) = (0, 3)") == batches
    assert await on.fetchval("select count(*) from relays where state <> 'dropped'") == 0
    assert await on.fetchval("select count(*) from batch_lines where code = 'cancelled'") == 2 * batches
