"""Stored content of jobs and files: holds, sums of sizes, and retention."""

from collections.abc import AsyncIterator

import anyio
import pytest

from coordinatord.api.files import files_sql
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.pins import objects_sql, storage_budgets
from coordinatord.storage.pins.containers import Containers, container_key, result_key
from coordinatord.storage.pins.objects_sql import NewObject
from coordinatord.storage.pins.storage_budgets import StorageBudgets
from tests.integration.coordinatord.book.market_rows import add_jobs, add_providers, market
from tests.integration.coordinatord.scene import relay_ends
from tests.integration.coordinatord.scene.party import Party
from tests.integration.coordinatord.scene.stage import Stage


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


OWNER = b"\x0a" * 20
MONTH, SHORT = 2_592_000, 100


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    async with market(database_url) as database, database.connection() as opened:
        yield opened


async def sums(connection: Connection) -> dict[str, tuple[int, int]]:
    rows = await connection.fetch("select kind, bytes, rows from stored where owner = $1 and rows <> 0", OWNER)
    return {row["kind"]: (row["bytes"], row["rows"]) for row in rows}


async def upload(connection: Connection, size: int, file_id: str = "file-1") -> None:
    await files_sql.begin_upload(connection, file_id, OWNER, "input", "name", reserved=size * 2)
    await files_sql.complete_upload(connection, file_id, cid="cid", size=size, lines=0, commitment=b"c")


async def keep(connection: Connection, job: bytes, key: str) -> None:
    """Attach a container to this job."""
    await objects_sql.hold_objects(connection, [NewObject(key, job, 10, b"\0" * 32, OWNER)])
    await objects_sql.attach_objects(connection, {key: 1}, MONTH)


async def decide(connection: Connection) -> None:
    await objects_sql.shorten_lifetimes(connection, retention_seconds=MONTH, unsettled_seconds=SHORT)


async def lives(connection: Connection, table: str = "objects") -> int:
    """Return the remaining lifetime of the only row in seconds."""
    left: int = await connection.fetchval(
        f"select round(extract(epoch from expires_at - clock_timestamp()))::bigint from {table}"  # noqa: S608 - its own names
    )
    return left


async def test_sums_follow_rows_as_they_come_change_and_go(connection: Connection) -> None:
    await files_sql.begin_upload(connection, "file-1", OWNER, "input", "name", reserved=500)
    assert await sums(connection) == {"inputs": (500, 1)}
    await files_sql.complete_upload(connection, "file-1", cid="cid", size=70, lines=0, commitment=b"c")
    await objects_sql.hold_objects(connection, [NewObject("containers/a", b"\1", 10, b"\0" * 32, OWNER)])
    await objects_sql.hold_objects(connection, [NewObject("containers/b", b"\1", 10, b"\0" * 32, OWNER)])
    await objects_sql.hold_objects(connection, [NewObject("containers/b", b"\1", 30, b"\1" * 32, OWNER)])
    await objects_sql.hold_objects(connection, [NewObject("results/b/c", b"\1", 5, b"\1" * 32, OWNER)])
    assert await sums(connection) == {"inputs": (70, 1), "containers": (40, 2), "results": (5, 1)}
    held = await objects_sql.read_stored_sums(connection, OWNER)
    assert (held.bytes, held.rows, held.has_earned) == (115, 4, False)
    await connection.execute("delete from objects")
    await connection.execute("delete from files")
    assert await sums(connection) == {}
    await objects_sql.drop_empty_sums(connection)
    assert await connection.fetchval("select count(*) from stored") == 0


async def test_settled_job_or_a_listing_earns_the_larger_allowance(connection: Connection) -> None:
    await add_providers(connection, 2)
    operator: bytes = await connection.fetchval("select operator from providers where provider_id = 1")
    assert (await objects_sql.read_stored_sums(connection, operator)).has_earned
    await connection.execute("update providers set listed = false")
    assert not (await objects_sql.read_stored_sums(connection, operator)).has_earned
    await add_jobs(connection, 1, models=1)
    await connection.execute("update jobs set owner = $1, state = 2, provider_id = 1", OWNER)
    assert (await objects_sql.read_stored_sums(connection, operator)).has_earned
    assert (await objects_sql.read_stored_sums(connection, OWNER)).has_earned


async def test_newcomers_share_a_ceiling_that_others_do_not(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_budgets, "_SUMS_REFRESH_INTERVAL_S", 0.0)
    monkeypatch.setattr(storage_budgets, "_SUMS_READ_PAUSE_FACTOR", 0.0)
    budgets = StorageBudgets(
        max_newcomer_bytes=100, max_newcomer_rows=0, max_earner_bytes=0, max_earner_rows=0, max_all_newcomers_bytes=250
    )

    async def keep_for(owner: bytes, key: str) -> None:
        async with connection.transaction():
            await objects_sql.hold_objects(connection, [NewObject(f"containers/{key}", b"\1", 90, b"\0" * 32, owner)])
            await budgets.check(connection, owner)

    for n in range(2):
        await keep_for(bytes([n]) * 20, str(n))
    with pytest.raises(Retryable, match="wallets without a settled job share"):
        await keep_for(OWNER, "a")
    await add_jobs(connection, 1, models=1)
    await connection.execute("update jobs set owner = $1, state = 2", bytes(20))
    await keep_for(bytes(20), "b")
    with pytest.raises(Retryable, match="wallets without a settled job share"):
        await keep_for(OWNER, "c")
    await objects_sql.mark_earners(connection)
    await keep_for(OWNER, "d")


@pytest.mark.parametrize(
    ("ended", "kept"),
    [
        ("state = 2", MONTH),
        ("state = 1", MONTH),
        ("state = 0", MONTH),
        ("state = 3, ended_because = 2", SHORT),
        ("state = 3, ended_because = 3", SHORT),
        ("state = 0, expires_at = 0", SHORT),
    ],
)
async def test_content_is_kept_long_where_its_job_settled_or_lives(
    connection: Connection, ended: str, kept: int
) -> None:
    await add_jobs(connection, 1, models=1)
    await connection.execute(f"update jobs set {ended}")  # noqa: S608 - one of the cases above
    await keep(connection, await connection.fetchval("select job_id from jobs"), "containers/a")
    await decide(connection)
    assert abs(await lives(connection) - kept) < 10
    await decide(connection)
    assert abs(await lives(connection) - kept) < 10


async def test_content_of_a_job_revived_by_a_reorg_is_kept(connection: Connection) -> None:
    await add_jobs(connection, 1, models=1)
    await keep(connection, await connection.fetchval("select job_id from jobs"), "containers/a")
    await connection.execute("update jobs set state = 3, ended_because = 2")
    await decide(connection)
    await connection.execute("update jobs set state = 1, ended_because = 0")
    await connection.execute("update objects set expires_at = clock_timestamp() - interval '1 second'")
    await decide(connection)
    assert abs(await lives(connection) - MONTH) < 10


async def test_content_of_a_job_that_was_never_posted_is_kept_short(connection: Connection) -> None:
    job = b"\7" * 32
    await keep(connection, job, "containers/a")
    await connection.execute(
        "insert into relays (kind, subject, dedupe, target, calldata, priority) values ('post', $1, '', '', '', 3)", job
    )
    await decide(connection)
    assert abs(await lives(connection) - MONTH) < 10
    await connection.execute("update relays set state = 'refused'")
    await connection.execute("update index_position set rebuilding = true")
    await decide(connection)
    assert abs(await lives(connection) - MONTH) < 10, "an index that is being rebuilt knows of no job"
    await connection.execute("update index_position set rebuilding = false")
    await decide(connection)
    assert abs(await lives(connection) - SHORT) < 10


@pytest.mark.parametrize("ended", ["state = 3, ended_because = 2", "state = 3, ended_because = 3", None])
async def test_upload_keeps_the_expiry_its_owner_was_told(connection: Connection, ended: str | None) -> None:
    """Its job was cancelled, failed, or never posted."""
    await add_jobs(connection, 1, models=1)
    job = await connection.fetchval("select job_id from jobs") if ended is not None else b"\7" * 32
    await upload(connection, 5)
    await files_sql.attach_file(connection, "file-1", MONTH, job)
    told = await connection.fetchval("select expires_at from files")
    if ended is not None:
        await connection.execute(f"update jobs set {ended}")  # noqa: S608 - one of the cases above
    await decide(connection)
    assert await connection.fetchval("select expires_at from files") == told
