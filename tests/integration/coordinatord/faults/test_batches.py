"""Batches with workers that crash and race, and with a failing store."""

from collections.abc import AsyncIterator, Sequence

import anyio
import attrs
import httpx
import pytest

from coordinatord.api.batches.line_checks import CheckedLine, LineChecks
from coordinatord.api.batches.line_reader import InputLine
from coordinatord.api.batches.worker import BatchWorker
from coordinatord.api.files.files_sql import object_key
from coordinatord.run import app
from coordinatord.storage.database.connections import open_database
from devnet.world import World
from tests.integration.coordinatord.scene.batching import Batching
from tests.integration.coordinatord.scene.party import Party, wallet_of
from tests.integration.coordinatord.scene.stage import Seen, Stage, configured, environment, staged
from tests.support.fakes.budgets import UNLIMITED
from tests.support.faults.batch_worker_process import batch_worker_process
from tests.support.invariants.batches import broken_batches
from tests.support.invariants.jobs import job_violations
from tests.support.invariants.relays import relay_violations

KILLS, LINES, MAX_OPEN_LINES = 10, 300, 20


@pytest.fixture
async def idle_stage(world: World, database_url: str) -> AsyncIterator[Stage]:
    """A coordinator without relayer and batch workers."""
    seen: list[Seen] = []
    async with staged(world, configured(world, database_url), seen, relayer=False) as stage:
        yield stage


@pytest.fixture
async def batching(world: World, idle_stage: Stage) -> Batching:
    """Sign a client in at the idle coordinator, to create batches."""
    wallet = world.wallets.with_role("client")[0]
    registry = idle_stage.ground.config.addresses.job_registry
    owner = Party(wallet_of(wallet), idle_stage.ground.domains, registry, idle_stage.http, wallet.box_key)
    await owner.sign_in()
    return await Batching.of(idle_stage, owner)


def small_steps(stage: Stage, max_lines: int) -> BatchWorker:
    worker = app.build_batch_worker(stage.ground)
    return attrs.evolve(worker, expander=attrs.evolve(worker.expander, max_lines=max_lines))


def no_puts(request: httpx.Request) -> httpx.Response | None:
    return httpx.Response(503) if request.method == "PUT" else None


@pytest.mark.long
async def test_worker_killed_ten_times_posts_each_line_once(
    world: World, database_url: str, idle_stage: Stage, batching: Batching
) -> None:
    lines = batching.submitter.lines(LINES // 2)
    created = await batching.create(*[line for good in lines for line in (good, b"no json")])
    settings = environment(world, database_url, **UNLIMITED)  # a new wallet's lines would wait for settled ones
    before = "select exists (select from batch_work where lines_done <= $1)"
    under_way = "select exists (select from relays where state <> 'mined')"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.run_relay_task, idle_stage.ground)
        for kill in range(KILLS):
            with batch_worker_process(settings, MAX_OPEN_LINES), anyio.fail_after(60):
                while await idle_stage.fetchval(before, kill * LINES // KILLS):  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.002)
        with batch_worker_process(settings, MAX_OPEN_LINES):
            await batching.until(created["id"], counts=(0, LINES // 2, LINES))
            with anyio.fail_after(60):
                while await idle_stage.fetchval(under_way):  # noqa: ASYNC110 - the event is in another process
                    await anyio.sleep(0.02)
            await idle_stage.execute("update batches set expires_at = clock_timestamp()")
            await batching.until(created["id"], status="expired", counts=(0, LINES, LINES))
        tasks.cancel_scope.cancel()
    assert await broken_batches(idle_stage.ground.database, idle_stage.ground.pins) == []
    promised = {bytes.fromhex(line["job_id"][2:]) for line in lines}
    assert await job_violations(idle_stage.ground.rpc, idle_stage.ground.config.addresses, promised=promised) == []
    async with idle_stage.ground.database.connection() as connection:
        assert await relay_violations(connection, idle_stage.ground.rpc, stuck_after=0) == []  # type: ignore[arg-type]


async def test_racing_workers_post_each_line_once(database_url: str, idle_stage: Stage, batching: Batching) -> None:
    batches = [await batching.create(*[b"no json", *batching.submitter.lines(20)], b"", b"{}") for _ in range(3)]
    async with open_database(database_url, max_size=4) as second, anyio.create_task_group() as tasks:
        rival = attrs.evolve(idle_stage, ground=attrs.evolve(idle_stage.ground, database=second))
        for stage in (idle_stage, rival):
            tasks.start_soon(small_steps(stage, 4).run)
        for batch in batches:
            await batching.until(batch["id"], counts=(0, 2, 22))
            await batching.cancel(batch["id"])
            await batching.until(batch["id"], status="cancelled", counts=(0, 22, 22))
        tasks.cancel_scope.cancel()
    assert await broken_batches(idle_stage.ground.database, idle_stage.ground.pins) == []
    assert await idle_stage.fetchval("select count(*) from relays") == 60


async def test_store_failure_delays_only_output_files(idle_stage: Stage, batching: Batching) -> None:
    created = await batching.create(b"no json")
    worker = small_steps(idle_stage, 10)
    assert await worker.run_step()
    assert await worker.run_step()
    with idle_stage.store.answering(no_puts):
        assert await worker.run_step()
    assert (await batching.get(f"/{created['id']}")).json()["status"] == "finalizing"
    assert await idle_stage.fetchval("select attempts from batch_work") == 1
    assert await idle_stage.fetchval("select count(*) from files where purpose = 'batch_output'") == 0
    await idle_stage.execute("update batch_work set due_at = clock_timestamp()")
    assert await worker.run_step()
    done = (await batching.get(f"/{created['id']}")).json()
    assert (done["status"], len(await batching.lines(done["error_file_id"]))) == ("completed", 1)


async def test_store_failure_delays_only_affected_lines(idle_stage: Stage, batching: Batching) -> None:
    created = await batching.create(*batching.submitter.lines(3))

    worker = small_steps(idle_stage, 10)
    with idle_stage.store.answering(no_puts):
        assert await worker.run_step()
    assert (await batching.get(f"/{created['id']}")).json()["status"] == "validating"
    assert await idle_stage.fetchval("select count(*) from relays") == 0
    await idle_stage.execute("update batch_work set due_at = clock_timestamp()")
    assert await worker.run_step()
    assert await idle_stage.fetchval("select count(*) from relays where state = 'queued'") == 3


async def test_failing_batch_is_postponed_and_others_continue(
    idle_stage: Stage, batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await batching.create(b'"poison"'), await batching.create(b"no json")
    check = LineChecks.check_lines

    def faulty(checks: LineChecks, lines: Sequence[InputLine]) -> list[CheckedLine]:
        if lines[0].text == b'"poison"':
            raise RuntimeError("a fault")
        return check(checks, lines)

    worker = small_steps(idle_stage, 10)
    with monkeypatch.context() as patched:
        patched.setattr(LineChecks, "check_lines", faulty)
        while await worker.run_step():
            pass
    assert (await batching.get(f"/{second['id']}")).json()["status"] == "completed"
    assert (await batching.get(f"/{first['id']}")).json()["status"] == "validating"
    await idle_stage.execute("update batch_work set due_at = clock_timestamp()")
    while await worker.run_step():
        pass
    assert (await batching.get(f"/{first['id']}")).json()["status"] == "completed"


async def lose_input(stage: Stage, batch: dict[str, object], worker: BatchWorker) -> None:
    """Delete the input file from the store, and process the batch until the loss is accepted."""
    await stage.ground.pins.delete(object_key(str(batch["input_file_id"])))
    for _ in range(4):
        await stage.execute("update batch_work set due_at = clock_timestamp()")
        assert await worker.run_step()


async def test_batch_whose_input_file_is_lost_fails_as_a_whole(idle_stage: Stage, batching: Batching) -> None:
    created = await batching.create(b"no json")
    await lose_input(idle_stage, created, small_steps(idle_stage, 10))
    failed = (await batching.get(f"/{created['id']}")).json()
    assert failed["status"] == "failed"
    assert failed["failed_at"] >= failed["created_at"]
    message = "the object store has lost the input file; upload it again"
    error = {"code": "object_missing", "message": message, "param": "input_file_id", "line": None}
    assert failed["errors"] == {"object": "list", "data": [error]}
    assert failed["request_counts"] == {"completed": 0, "failed": 0, "total": 0}
    assert (await batching.cancel(created["id"])).json()["error"]["code"] == "batch_not_cancellable"


async def test_lines_behind_a_loss_of_the_input_file_end_as_errors(idle_stage: Stage, batching: Batching) -> None:
    created = await batching.create(b"no json", b"no json", b"no json", b"no json", b"no json")
    worker = small_steps(idle_stage, 2)
    assert await worker.run_step()
    await lose_input(idle_stage, created, worker)
    while await worker.run_step():
        pass
    done = (await batching.get(f"/{created['id']}")).json()
    assert (done["status"], done["errors"]["data"][0]["line"]) == ("completed", 3)
    errors = [line["error"]["code"] for line in await batching.lines(done["error_file_id"])]
    assert errors == ["invalid_json"] * 2 + ["invalid_line"] * 3
