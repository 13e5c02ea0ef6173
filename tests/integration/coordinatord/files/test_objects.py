import anyio
import pytest

from coordinatord.pins import objects_sql
from coordinatord.pins.containers import container_key
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage

pytestmark = pytest.mark.anyio


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
        await objects_sql.hold(connection, container_key(waiting), waiting, 1, b"\0" * 32)
    await stage.execute(
        "insert into relays (kind, subject, dedupe, target, calldata, priority, state, tx_id) values"
        " ('post', $1, $1, '', '', 2, 'signed', null)",
        waiting,
    )
    await expire(stage)
    await stage.sweep()
    assert await stage.fetchval("select expires_at > clock_timestamp() from objects where not attached")


async def test_refused_attempt_leaves_the_object_to_another_that_holds_it(client: Party, stage: Stage) -> None:
    body = await client.paid(rate_in=10**24)  # the chain refuses it: the owner has less
    job = bytes.fromhex(body["job_id"][2:])
    async with stage.ground.database.connection() as connection:
        await objects_sql.hold(connection, container_key(job), job, 1, b"\0" * 32)
        await objects_sql.hold(connection, container_key(job), job, 1, b"\0" * 32)
        assert await objects_sql.lease_removal(connection, container_key(job)) is False
        assert await objects_sql.lease_removal(connection, container_key(job)) is True
        assert await objects_sql.hold(connection, container_key(job), job, 1, b"\0" * 32) is None  # being removed


async def test_upload_waits_for_the_removal_of_the_same_key(client: Party, stage: Stage) -> None:
    body = await client.paid()
    job = bytes.fromhex(body["job_id"][2:])
    key = container_key(job)
    async with stage.ground.database.connection() as connection:
        await objects_sql.hold(connection, key, job, 1, b"\0" * 32)
        assert await objects_sql.lease_removal(connection, key)
    statuses: list[int] = []

    async def post() -> None:
        statuses.append((await stage.http.post("/v1/jobs", json=body)).status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        await anyio.wait_all_tasks_blocked()
        async with stage.ground.database.connection() as connection:
            await objects_sql.forget(connection, key)
    assert statuses == [201]
    assert await stage.stored(key)
