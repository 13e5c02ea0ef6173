"""Many pollers at once, in two processes, over made-up jobs."""

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import cast

import anyio
import pytest

from coordinatord.service.funding import Funding
from coordinatord.service.outcomes import NotSigned
from coordinatord.service.polls import Polls
from coordinatord.service.recent import Recent
from coordinatord.store.database import Database, open_database
from coordinatord.store.jobs import JobFilter
from coordinatord.store.leases import HeldJob
from coordinatord.store.migrate import migrate
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot, read_snapshot
from tests.integration.coordinatord.store.market_rows import add_jobs, add_models, add_providers, begin_index

pytestmark = pytest.mark.anyio

MODELS, PROVIDERS, JOBS, POLLS = 4, 100, 600, 1000


class AllPaid:
    async def hold_back_unpaid(self, _: list[HeldJob], _at: Snapshot) -> bool:
        return False


@pytest.fixture
async def processes(database_url: str) -> AsyncIterator[list[Polls]]:
    """As small as pools are: whoever cannot be served at once has to wait, and is not given up."""
    async with AsyncExitStack() as stack:
        pools = [await stack.enter_async_context(open_database(database_url, smallest=2, largest=2)) for _ in range(2)]
        async with pools[0].connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, MODELS)
            await add_providers(connection, PROVIDERS)
            await add_jobs(connection, JOBS, models=MODELS)
        yield [polls_over(pool) for pool in pools]


def polls_over(pool: Database, clock: Callable[[], float] = time.monotonic) -> Polls:
    position = Recent(pool.line(), read_snapshot, clock)
    return Polls(pool, cast(Funding, AllPaid()), position, lease_ms=60_000, liveness_ms=15_000)


async def test_a_thousand_polls_at_once_are_all_answered_and_no_job_is_leased_twice(processes: list[Polls]) -> None:
    holders: dict[bytes, set[int]] = defaultdict(set)

    async def poll(n: int) -> None:
        provider = 1 + n % PROVIDERS
        wanted = JobFilter(state="Open", model_id=1 + n // PROVIDERS % MODELS)
        held = await processes[n % 2].poll(SessionRow(b"\x01", provider), wanted, 2, 100, 0)
        assert not isinstance(held, NotSigned)
        for job in held[1]:
            holders[job.job_id].add(provider)

    async with anyio.create_task_group() as tasks:
        for n in range(POLLS):
            tasks.start_soon(poll, n)
    assert {len(providers) for providers in holders.values()} == {1}
    assert len(holders) == JOBS  # four hundred pairs of provider and model want two each: nothing is left over


async def test_provider_for_whom_nothing_was_open_is_leased_what_comes_with_the_next_block(database_url: str) -> None:
    now = 100.0
    async with open_database(database_url, smallest=1, largest=2) as pool:
        async with pool.connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, 2)
        polls = polls_over(pool, lambda: now)

        async def poll(provider: int) -> int:
            held = await polls.poll(SessionRow(b"\x01", provider), JobFilter(state="Open", model_id=1), 4, 100, 0)
            assert not isinstance(held, NotSigned)
            return len(held[1])

        assert [await poll(1), await poll(2), await poll(1)] == [0, 0, 0]
        async with pool.connection() as connection, connection.transaction():
            await add_jobs(connection, 3, models=1)
            await connection.execute("update jobs set designated = 2 where posted_block > 1")
            await connection.execute("update index_position set block_number = 2, block_hash = '\\x02'")
        now += 0.06
        assert [await poll(1), await poll(2)] == [1, 2]
