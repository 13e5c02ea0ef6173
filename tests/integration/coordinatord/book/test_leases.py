"""Concurrent polls over generated jobs: in any order, each job is leased once (I9)."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import attrs
import pytest

from coordinatord.api.book import leases_sql, outlooks_sql, pending_offers_sql
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.leases_sql import LeasedJob, PollKey
from coordinatord.api.book.outlooks_sql import PollOutlook
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from tests.integration.coordinatord.book.market_rows import add_jobs, add_models, add_providers, begin_index

pytestmark = pytest.mark.anyio

PROCESSES, PROVIDERS, JOBS = 2, 40, 400
# A claim of provider 1 waits for advisory lock 1 after it has locked the offer.
_PAUSE_BEFORE_LEASE = """
    create function pause() returns trigger language plpgsql as $$ begin
        if new.provider_id = 1 then perform pg_advisory_xact_lock(1); end if;
        return new;
    end $$;
    create trigger pause before insert on leases for each row execute function pause()
"""
_CLAIM_WAITS = "select exists (select from pg_locks where locktype = 'advisory' and objid = 1 and not granted)"


@pytest.fixture
async def databases(database_url: str) -> AsyncIterator[list[Database]]:
    """Open a pool per process."""
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(open_database(database_url, max_size=8)) for _ in range(PROCESSES)]
        async with pools[0].connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, PROVIDERS)
        yield pools


async def poll(database: Database, provider: int, free: int, wanted: JobFilter | None = None) -> list[LeasedJob]:
    demand = (PollKey(provider, 1), free, wanted or JobFilter())

    async def body(connection: Connection) -> list[LeasedJob]:
        _, held = await leases_sql.lease_jobs(connection, *demand, 60_000)
        return held

    return await database.transact(body)


async def test_polls_of_two_processes_lease_every_job_once(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, JOBS, models=1)
    held: dict[int, set[bytes]] = {}

    async def provider(number: int) -> None:
        """Poll both processes in turn, until the provider has as many jobs as requested."""
        for attempt in range(4):
            jobs = await poll(databases[(number + attempt) % PROCESSES], number, JOBS // PROVIDERS)
            assert len(jobs) <= JOBS // PROVIDERS
            held[number] = {job.row.job_id for job in jobs}

    async with anyio.create_task_group() as tasks:
        for number in range(1, PROVIDERS + 1):
            tasks.start_soon(provider, number)
    counted = Counter(job for jobs in held.values() for job in jobs)
    assert set(counted.values()) == {1}
    assert len(counted) == JOBS


async def test_concurrent_polls_of_one_provider_share_its_limit(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, 50, models=1)
    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(poll, databases[n % PROCESSES], 7, 4)
    assert len(await poll(databases[0], 7, 4)) == 4


async def test_poll_counts_what_the_provider_holds_of_the_model(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_models(connection, 1, first=2)
        await add_jobs(connection, 20, models=2)  # model 2 has the odd blocks, model 1 the even ones
        await connection.execute("update jobs set designated = 5 where posted_block in (8, 10)")

    async def blocks(provider: int, free: int) -> list[int]:
        return [job.row.posted_block for job in await poll(databases[0], provider, free)]

    assert [await blocks(5, 4), await blocks(6, 2)] == [[2, 4, 6, 8], [12, 14]]
    assert [await blocks(6, 4), await blocks(5, 9)] == [[12, 14, 16, 18], [2, 4, 6, 8, 10, 20]]
    assert await blocks(5, 0) == [2, 4, 6, 8, 10, 20]


async def test_open_and_reserved_jobs_share_one_lease_order(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, 9, models=1)
        await connection.execute(
            "update jobs set designated = case posted_block % 3 when 1 then 2 when 2 then 3 else 0 end"
        )
        await connection.execute("update jobs set rate_in = posted_block")

    async def blocks(provider: int, free: int, **wanted: int) -> list[int]:
        jobs = await poll(databases[0], provider, free, JobFilter(**wanted))  # type: ignore[arg-type] # numbers all
        await databases[0].pool.execute("delete from leases")
        return [job.row.posted_block for job in jobs]

    assert await blocks(2, 4) == [1, 3, 4, 6]
    assert await blocks(3, 9) == [2, 3, 5, 6, 8, 9]
    assert await blocks(2, 9, min_rate_in=5) == [6, 7, 9]
    assert await blocks(2, 9, posted_before=4) == [1, 3, 4]
    assert await blocks(1, 0) == []


async def test_outlook_agrees_with_the_poll(databases: list[Database]) -> None:
    line = databases[0].prepared_connection()
    pollers = [PollKey(1, 1), PollKey(2, 1), PollKey(1, 2)]
    nothing = PollOutlook(
        known_model=True, has_open_jobs=False, has_free_jobs=False, has_offers=False, may_claim=False, has_leases=False
    )
    held_by_other = attrs.evolve(nothing, has_open_jobs=True)
    held = attrs.evolve(held_by_other, has_leases=True)
    not_for_it = attrs.evolve(held_by_other, has_free_jobs=True)
    free = attrs.evolve(not_for_it, may_claim=True)

    async def outlooks() -> list[PollOutlook]:
        _, found = await outlooks_sql.read_outlooks(line, pollers)
        assert not found[pollers[2]].known_model
        return [found[poller] for poller in pollers[:2]]

    assert await outlooks() == [nothing, nothing]
    async with databases[0].connection() as connection:
        await add_jobs(connection, 1, models=1)
    assert await outlooks() == [free, free]
    await databases[0].pool.execute("update providers set listed = false where provider_id = 2")
    assert await outlooks() == [free, not_for_it]
    await poll(databases[0], 1, 1)
    assert await outlooks() == [held, held_by_other]
    await databases[0].pool.execute("update providers set listed = true")
    await databases[0].pool.execute("delete from leases")
    await databases[0].pool.execute("update jobs set designated = 2")
    assert await outlooks() == [nothing, free]


async def offer(connection: Connection, job_id: bytes) -> None:
    """Offer a job like those in the book, with its post still queued."""
    relay = await connection.fetchval(
        "insert into relays (kind, subject, dedupe, target, calldata, priority)"
        " values ('post', $1, $1, '', '', 0) returning id",
        job_id,
    )
    await connection.execute(
        "insert into pending_offers (job_id, relay_id, owner, c, model_id, sla_secs, rate_in, rate_out, units_in,"
        " units_out, designated, expires_at, order_sig, pay_sig, fee_bps, gas_fee, task_cid)"
        " select $1, $2, $1, $1, 1, 3600, 10, 10, 1, 1, 0, expires_at, c, c, 250, 2000, '' from jobs limit 1",
        job_id,
        relay,
    )


async def test_provider_gets_no_job_and_no_offer_that_it_may_not_claim(databases: list[Database]) -> None:
    database, job_id = databases[0], b"\x77" * 32
    async with database.connection() as connection:
        await add_jobs(connection, 3, models=1)
        await offer(connection, job_id)

    async def offered() -> list[bytes]:
        async def body(connection: Connection) -> list[bytes]:
            jobs = await pending_offers_sql.take_offers(connection, PollKey(1, 1), 9, JobFilter(), milliseconds=1000)
            return [job.posted.order.c for job in jobs]

        return await database.transact(body)

    for table, change, undo in (
        ("providers", "listed = false", "listed = true"),
        ("providers", "allow_all_models = false", "allow_all_models = true"),
        ("providers", "active_jobs = 1000000", "active_jobs = 0"),
        ("models", "enabled = false", "enabled = true"),
    ):
        await database.pool.execute(f"update {table} set {change}")  # noqa: S608 - constants
        assert (await poll(database, 1, 2), await offered()) == ([], []), change
        await database.pool.execute(f"update {table} set {undo}")  # noqa: S608 - constants
    await database.pool.execute("update jobs set expires_at = 0 where ordinal = 0")
    assert [job.row.posted_block for job in await poll(database, 1, 9)] == [2, 3]
    assert await offered() == [job_id]
    assert await offered() == [], "it is held, and was offered to this provider"


async def test_poll_skips_an_offer_that_a_claim_has_locked(databases: list[Database]) -> None:
    """A claim locks the offer before the lease. A poll that locks them in the other order causes deadlocks."""
    job_id, claimed = b"\x77" * 32, []
    async with databases[0].connection() as connection:
        await add_jobs(connection, 1, models=1)
        await offer(connection, job_id)
        await connection.execute("update pending_offers set offered_to = '{1}'")
        await connection.execute(_PAUSE_BEFORE_LEASE)

    async def claim() -> None:
        async def body(connection: Connection) -> None:
            claimed.append(await pending_offers_sql.claim_offer(connection, job_id, 1, seconds=60))

        await databases[1].transact(body)

    async def take(connection: Connection) -> list[PendingJob]:
        await connection.execute("set local lock_timeout = '1s'")
        return await pending_offers_sql.take_offers(connection, PollKey(2, 1), 9, JobFilter(), milliseconds=1000)

    async with databases[0].connection() as gate, anyio.create_task_group() as tasks:
        await gate.execute("select pg_advisory_lock(1)")
        tasks.start_soon(claim)
        with anyio.fail_after(30):
            while not await gate.fetchval(_CLAIM_WAITS):  # noqa: ASYNC110 - the event is in another process
                await anyio.sleep(0.01)
        assert await databases[0].transact(take) == []
        await gate.execute("select pg_advisory_unlock(1)")
    assert [job is not None for job in claimed] == [True]
    assert await databases[0].pool.fetchval("select provider_id from leases") == 1
