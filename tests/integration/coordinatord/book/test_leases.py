"""Concurrent polls of several processes over generated jobs: each job is leased once (I9)."""

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import attrs
import pytest

from coordinatord.api.book import leases_sql, outlooks_sql, pending_offers_sql
from coordinatord.api.book.funding import FundsChecker
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.leases_sql import LeasedJob, PollKey
from coordinatord.api.book.liveness import LivenessRecorder
from coordinatord.api.book.outlooks_sql import PollOutlook
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.polls import PollService, build_poll
from coordinatord.base.outcomes import SessionRow, Unauthorised
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.integration.coordinatord.book.market_rows import add_jobs, add_models, market

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
    async with (
        market(database_url, 8, providers=40) as first,
        open_database(database_url, max_size=8) as second,
    ):
        yield [first, second]


async def poll(database: Database, provider: int, free: int, wanted: JobFilter | None = None) -> list[LeasedJob]:
    demand = (PollKey(provider, 1), free, wanted or JobFilter())

    async def body(connection: Connection) -> list[LeasedJob]:
        _, held = await leases_sql.lease_jobs(connection, *demand, 60_000)
        return held

    return await database.transact(body)


async def test_concurrent_polls_of_one_provider_share_its_limit(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, 50, models=1)
    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(poll, databases[n % 2], 7, 4)
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
    await database.pool.execute("update providers set requested = 2, ceiling = 2")
    assert len(await poll(database, 1, 9)) == 2
    await database.pool.execute("delete from leases")
    await database.pool.execute("update providers set requested = 1000000, ceiling = 1000000")
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


MODELS, PROVIDERS, JOBS, POLLS = 4, 100, 600, 1000


class AllPaid:
    """Fake check of funds that holds back no job."""

    async def hold_back_unpaid(self, _: list[JobRow], _at: Snapshot) -> bool:
        return False


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[PollService]]:
    """Two processes with the smallest pools, so that excess requests wait in the queue without being dropped."""
    async with (
        market(database_url, 2, models=MODELS, providers=PROVIDERS, jobs=JOBS) as first,
        open_database(database_url, max_size=2) as second,
    ):
        yield [polls_over(pool) for pool in (first, second)]


def polls_over(pool: Database) -> PollService:
    unused: Any = None
    funding, liveness = cast(FundsChecker, AllPaid()), LivenessRecorder(pool, 15_000)
    return PollService(
        pool, funding, lease_ms=60_000, liveness=liveness, waiting_polls=unused, connection_limits=unused, offers=unused
    )


async def jobs_of(polls: PollService, provider: int, wanted: JobFilter, free: int) -> list[JobRow]:
    poll = build_poll(SessionRow(b"\x01", provider), wanted, free, 100, 0)
    assert not isinstance(poll, Unauthorised)
    return (await polls.answer(poll)).jobs


async def test_thousand_concurrent_polls_lease_no_job_twice(processes: list[PollService]) -> None:
    holders: dict[bytes, set[int]] = defaultdict(set)

    async def poll(n: int) -> None:
        provider = 1 + n % PROVIDERS
        wanted = JobFilter(state="Open", model_id=1 + n // PROVIDERS % MODELS)
        for job in await jobs_of(processes[n % 2], provider, wanted, 2):
            holders[job.job_id].add(provider)

    async with anyio.create_task_group() as tasks:
        for n in range(POLLS):
            tasks.start_soon(poll, n)
    assert {len(providers) for providers in holders.values()} == {1}
    assert len(holders) == JOBS  # four hundred pairs of provider and model want two each, so no job is left


async def test_poll_is_told_of_held_jobs_only_what_it_asks_for(processes: list[PollService]) -> None:
    async def poll(**more: int) -> int:
        wanted = JobFilter(state="Open", model_id=1, **more)  # type: ignore[arg-type] # the rates among them
        return len(await jobs_of(processes[0], 1, wanted, 4))

    assert await poll() == 4
    assert await poll(min_rate_in=1_000_001) == 0
    assert await poll(min_rate_out=2_000_001) == 0
    assert await poll(min_rate_in=1_000_000, min_rate_out=2_000_000) == 4


async def test_polls_at_once_are_each_leased_only_what_they_ask_for(processes: list[PollService]) -> None:
    told: dict[int, int] = {}

    async def poll(provider: int) -> None:
        dear = provider % 2 == 0  # no job pays as much
        wanted = JobFilter(state="Open", model_id=1, min_rate_in=1_000_001 if dear else 1)
        told[provider] = len(await jobs_of(processes[0], provider, wanted, 1))

    async with anyio.create_task_group() as tasks:
        for provider in range(1, 21):
            tasks.start_soon(poll, provider)
    assert told == {provider: provider % 2 for provider in range(1, 21)}


async def test_unwanted_orders_do_not_displace_wanted_ones(
    database_url: str,
) -> None:
    async with market(database_url, 2, providers=1, jobs=6) as pool:
        async with pool.connection() as connection:
            await connection.execute(
                "insert into asks (provider_id, model_id, sla, rate_in, rate_out) values (1, 1, 3600, 1000000, 2000000)"
            )
            # First a job of another window, then two below the ask, then a match, and two bids last.
            await connection.execute("update jobs set designated = 1 where posted_block <= 4")
            await connection.execute("update jobs set sla_secs = 60 where posted_block = 1")
            await connection.execute("update jobs set rate_in = 999999 where posted_block in (2, 3)")
        polls = polls_over(pool)

        async def poll(free: int) -> list[int]:
            jobs = await jobs_of(polls, 1, JobFilter(state="Open", model_id=1), free)
            return [job.posted_block for job in jobs]

        async with pool.connection() as connection:
            await connection.execute("update jobs set state = 1 where posted_block > 3")
        assert await poll(2) == [1, 2], "with nothing better to do, what came unasked is told as well"
        async with pool.connection() as connection:
            await connection.execute("update jobs set state = 0")
        assert await poll(2) == [4, 5]
        assert await poll(3) == [4, 5, 6]
        assert await poll(5) == [1, 2, 4, 5, 6]
        assert await poll(5) == [1, 2, 4, 5, 6]


async def test_provider_stays_live_with_few_written_polls(database_url: str) -> None:
    now = 100.0
    async with market(database_url, 2) as pool:
        attendance = LivenessRecorder(pool, 12_000, lambda: now)

        async def seconds_since_seen() -> float:
            async with pool.connection() as connection:
                age: float = await connection.fetchval(
                    "select extract(epoch from clock_timestamp() - seen_at)::float8 from liveness"
                )
                return age

        await attendance.record_poll(PollKey(1, 1), 4)
        now += 2.9
        await attendance.record_poll(PollKey(1, 1), 4)  # too soon for another write
        now += 1.0
        async with pool.connection() as connection:
            await connection.execute("update liveness set seen_at = seen_at - interval '3.9 seconds'")
        await attendance.store_delayed_polls()
        assert 0.9 < await seconds_since_seen() < 1.9


async def test_idle_provider_leases_jobs_of_the_next_block(database_url: str) -> None:
    async with market(database_url, 2, providers=2) as pool:
        polls = polls_over(pool)

        async def poll(provider: int) -> int:
            return len(await jobs_of(polls, provider, JobFilter(state="Open", model_id=1), 4))

        assert [await poll(1), await poll(2), await poll(1)] == [0, 0, 0]
        async with pool.connection() as connection, connection.transaction():
            await add_jobs(connection, 3, models=1)
            await connection.execute("update jobs set designated = 2 where posted_block > 1")
            await connection.execute("update index_position set block_number = 2, block_hash = '\\x02'")
        assert [await poll(1), await poll(2)] == [1, 2]


async def test_waiting_poll_is_written_while_it_waits(database_url: str) -> None:
    async with market(database_url, 2) as pool:
        liveness = LivenessRecorder(pool, 40)
        poller = PollKey(1, 1)
        await liveness.record_poll(poller, 4)
        before = len(anyio.get_running_tasks())
        with liveness.keep_live(poller, 4):
            assert len(anyio.get_running_tasks()) == before, "only `run` writes"
            async with pool.connection() as connection, anyio.create_task_group() as tasks:
                noted = await connection.fetchval("select seen_at from liveness")
                tasks.start_soon(liveness.run)
                with anyio.fail_after(10):
                    while await connection.fetchval("select seen_at = $1 from liveness", noted):  # noqa: ASYNC110 - no event says it
                        await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
