import anyio
import pytest

from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import Containers, container_key, result_key
from coordinatord.storage.pins.objects_sql import NewObject
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio


def one_byte(job: bytes) -> NewObject:
    return NewObject(container_key(job), job, 1, b"\0" * 32, b"")


async def expire(stage: Stage) -> None:
    await stage.execute("update objects set expires_at = clock_timestamp() - interval '1 second'")


async def test_posted_container_is_kept_for_the_retention_period(client: Party, stage: Stage) -> None:
    key = f"containers/{(await client.post())['job_id'][2:]}"
    assert await stage.fetchval("select attached and holders = 0 from objects where key = $1", key)
    days = await stage.fetchval("select extract(day from expires_at - created_at)::int from objects")
    assert days == 30
    await expire(stage)
    await stage.sweep()
    assert not await stage.stored(key)


async def test_object_of_no_job_goes_with_the_janitor(
    client: Party, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = await client.paid()
    relay_ends.ending(monkeypatch, relay_ends.dropped("relay_queue_full"))
    await stage.http.post("/v1/jobs", json=body)
    key = f"containers/{body['job_id'][2:]}"
    await stage.sweep()
    assert await stage.stored(key)  # its deadline has not passed
    await expire(stage)
    await stage.sweep()
    assert not await stage.stored(key)
    assert await stage.fetchval("select count(*) from objects") == 0


async def test_janitor_keeps_what_a_live_relay_or_a_job_needs(client: Party, stage: Stage) -> None:
    posted = f"containers/{(await client.post())['job_id'][2:]}"
    await stage.execute("update objects set attached = false")  # as after a crash between post and attachment
    await expire(stage)
    await stage.sweep()
    assert await stage.stored(posted)
    assert await stage.fetchval("select attached from objects where key = $1", posted)

    waiting = b"\x01" * 32
    async with stage.ground.database.connection() as connection:
        await objects_sql.hold_objects(connection, [one_byte(waiting)])
    await stage.execute(
        "insert into relays (kind, subject, dedupe, target, calldata, priority, state, tx_id) values"
        " ('post', $1, $1, '', '', 2, 'signed', null)",
        waiting,
    )
    await expire(stage)
    await stage.sweep()
    assert await stage.fetchval("select expires_at > clock_timestamp() from objects where not attached")


async def test_refused_attempt_keeps_an_object_held_by_another(client: Party, stage: Stage) -> None:
    body = await client.paid(rate_in=10**24)  # the chain refuses it because the owner has less
    job = bytes.fromhex(body["job_id"][2:])
    async with stage.ground.database.connection() as connection:
        await objects_sql.hold_objects(connection, [one_byte(job)])
        await objects_sql.hold_objects(connection, [one_byte(job)])
        assert await objects_sql.lease_removal(connection, container_key(job)) is False
        assert await objects_sql.lease_removal(connection, container_key(job)) is True
        assert await objects_sql.hold_objects(connection, [one_byte(job)]) == {}  # being removed


async def test_upload_waits_for_the_removal_of_the_same_key(client: Party, stage: Stage) -> None:
    body = await client.paid()
    job = bytes.fromhex(body["job_id"][2:])
    key = container_key(job)
    async with stage.ground.database.connection() as connection:
        await objects_sql.hold_objects(connection, [one_byte(job)])
        assert await objects_sql.lease_removal(connection, key)
    statuses: list[int] = []

    async def post() -> None:
        statuses.append((await stage.http.post("/v1/jobs", json=body)).status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        await anyio.wait_all_tasks_blocked()
        async with stage.ground.database.connection() as connection:
            await objects_sql.delete_object_row(connection, key)
    assert statuses == [201]
    assert await stage.stored(key)


async def test_burst_of_results_is_held_kept_and_let_go_each_by_itself(stage: Stage) -> None:
    """A provider settles a block's jobs. Their rows are written together, two of them for one result."""
    containers = Containers(stage.ground.database, stage.ground.pins, 3600)
    provider, jobs = b"\x0a" * 20, [bytes([number]) * 32 for number in range(1, 33)]
    all_held = anyio.Event()
    held: list[bytes] = []

    async def settle(job: bytes, took_effect: bool) -> None:
        result = b"result of " + job
        key = result_key(job, result)
        async with containers.hold_content(key, job, result, provider, check_budget=False) as holding:
            held.append(job)
            if len(held) == len(jobs) + 2:
                all_held.set()
            await all_held.wait()
            assert await stage.fetchval("select cid from objects where key = $1", key) == holding.cid
            if took_effect:
                holding.mark_effective()

    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(settle, job, job != jobs[1])
        tasks.start_soon(settle, jobs[0], True)
        tasks.start_soon(settle, jobs[1], False)
        await all_held.wait()
        assert await stage.fetchval("select sum(holders) from objects") == len(held)
    assert await stage.fetchval("select count(*) from objects where holders <> 0") == 0
    assert await stage.fetchval("select array_agg(subject) from objects where not attached") == [jobs[1]]
    kept = await stage.fetchval("select rows from stored where owner = $1 and kind = 'results'", provider)
    assert kept == len(jobs)


async def test_caller_that_disconnects_leaves_no_hold(stage: Stage) -> None:
    containers = Containers(stage.ground.database, stage.ground.pins, 3600)
    job, result = b"\x01" * 32, b"result"
    gone = anyio.CancelScope()

    async def settle() -> None:
        with gone:
            async with containers.hold_content(result_key(job, result), job, result, b"\x0a" * 20, check_budget=False):
                raise AssertionError("it has gone away")

    async with (
        anyio.create_task_group() as tasks,
        stage.ground.database.connection() as connection,
        connection.transaction(),
    ):
        await connection.execute("lock table objects in share mode")  # the hold's statement has to wait
        tasks.start_soon(settle)
        while not await stage.fetchval("select count(*) from pg_locks where not granted"):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        gone.cancel()
    assert await stage.fetchval("select holders from objects where subject = $1", job) == 0
