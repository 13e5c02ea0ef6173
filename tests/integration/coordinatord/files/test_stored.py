"""Sums of stored sizes, and retention of content without a result, in the tables alone."""

from collections.abc import AsyncIterator

import pytest

from coordinatord.api.files import files_sql
from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Connection, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.pins import objects_sql, storage_budgets
from coordinatord.storage.pins.objects_sql import NewObject
from coordinatord.storage.pins.storage_budgets import StorageBudgets
from tests.integration.coordinatord.book.market_rows import add_jobs, add_providers, begin_index

pytestmark = pytest.mark.anyio

OWNER = b"\x0a" * 20
MONTH, SHORT = 2_592_000, 100


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    async with open_database(database_url, max_size=2) as database, database.connection() as opened:
        await migrate(opened)
        await begin_index(opened)
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
