"""Many concurrent pollers at two processes, over generated jobs."""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
import pytest

from coordinatord.api.book.funding import FundsChecker
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.liveness import LivenessRecorder
from coordinatord.api.book.polls import PollService, build_poll
from coordinatord.base.outcomes import SessionRow, Unauthorised
from coordinatord.storage.database.connections import Database, open_database
from coordinatord.storage.database.migration import migrate
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.integration.coordinatord.book.market_rows import add_jobs, add_models, add_providers, begin_index

pytestmark = pytest.mark.anyio

MODELS, PROVIDERS, JOBS, POLLS = 4, 100, 600, 1000


class AllPaid:
    async def hold_back_unpaid(self, _: list[JobRow], _at: Snapshot) -> bool:
        return False


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[PollService]]:
    """Two processes with the smallest pools, so that excess requests wait in the queue without being dropped."""
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(open_database(database_url, max_size=2)) for _ in range(2)]
        async with pools[0].connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, MODELS)
            await add_providers(connection, PROVIDERS)
            await add_jobs(connection, JOBS, models=MODELS)
        yield [polls_over(pool) for pool in pools]


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
    async with open_database(database_url, max_size=2) as pool:
        async with pool.connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, 1)
            await add_jobs(connection, 6, models=1)
            await connection.execute("insert into asks values (1, 1, 3600, 1000000, 2000000)")
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
    async with open_database(database_url, max_size=2) as pool:
        async with pool.connection() as connection:
            await migrate(connection)
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
    async with open_database(database_url, max_size=2) as pool:
        async with pool.connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, 2)
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
    async with open_database(database_url, max_size=2) as pool:
        async with pool.connection() as connection:
            await migrate(connection)
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
