"""Polls against each other, over made-up jobs: whatever the order, a job is leased once (I9)."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio
import pytest

from coordinatord.api.book import leases_sql
from coordinatord.api.book.book_sql import JobFilter
from coordinatord.api.book.leases_sql import HeldJob, JobPlace, LeaseRequest, PollKey
from coordinatord.storage.database.connections import Connection, Database, open_database
from coordinatord.storage.database.migration import migrate
from tests.integration.coordinatord.book.market_rows import add_jobs, add_models, add_providers, begin_index

pytestmark = pytest.mark.anyio

PROCESSES, PROVIDERS, JOBS = 2, 40, 400


@pytest.fixture
async def databases(database_url: str) -> AsyncIterator[list[Database]]:
    """As many pools as there were processes."""
    async with AsyncExitStack() as stack:
        pools = [
            await stack.enter_async_context(open_database(database_url, smallest=2, largest=8))
            for _ in range(PROCESSES)
        ]
        async with pools[0].connection() as connection:
            await migrate(connection)
            await begin_index(connection)
            await add_models(connection, 1)
            await add_providers(connection, PROVIDERS)
        yield pools


async def poll(database: Database, provider: int, free: int, wanted: JobFilter | None = None) -> list[HeldJob]:
    async def body(connection: Connection) -> list[HeldJob]:
        _, held = await leases_sql.poll(
            connection,
            [LeaseRequest(PollKey(provider, 1), free)],
            wanted or JobFilter(),
            lease_ms=60_000,
            custody=None,
        )
        return held[PollKey(provider, 1)]

    return await database.transact(body)


async def poll_together(database: Database, *asks: LeaseRequest) -> list[list[int]]:
    """The blocks of what each then holds."""
    async with database.connection() as connection:
        _, held = await leases_sql.poll(connection, asks, JobFilter(), lease_ms=60_000, custody=None)
    return [[job.place.block for job in held[ask.poller]] for ask in asks]


async def test_polls_of_two_processes_lease_every_job_once_and_waste_none(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, JOBS, models=1)
    held: dict[int, set[bytes]] = {}

    async def provider(number: int) -> None:
        """Asks both processes in turn, and again while it holds fewer than it asked for."""
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


async def test_two_polls_of_one_provider_at_once_take_no_more_than_one_would(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, 50, models=1)
    async with anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(poll, databases[n % PROCESSES], 7, 4)
    assert len(await poll(databases[0], 7, 4)) == 4


async def test_polls_leased_together_get_what_each_asks_for_and_count_what_it_holds(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_models(connection, 1, first=2)
        await add_jobs(connection, 20, models=2)  # of model 2 those of odd blocks, of model 1 those of even ones
        await connection.execute("update jobs set designated = 5 where posted_block in (8, 10)")
    asks = (
        LeaseRequest(PollKey(5, 1), 4),
        LeaseRequest(PollKey(6, 1), 2),
        LeaseRequest(PollKey(5, 2), 2),
        LeaseRequest(PollKey(7, 2), 0),
    )
    assert await poll_together(databases[0], *asks) == [[2, 4, 6, 8], [14, 16], [1, 3], []]
    more = (
        LeaseRequest(PollKey(6, 1), 4),
        LeaseRequest(PollKey(5, 1), 9),
        LeaseRequest(PollKey(7, 1), 3),
    )
    assert await poll_together(databases[0], *more) == [[12, 14, 16, 18], [2, 4, 6, 8, 10, 20], []]


async def test_open_and_reserved_jobs_are_leased_in_one_order_and_filters_hold(databases: list[Database]) -> None:
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


async def test_peek_tells_of_each_poller_whether_there_is_anything_for_it(databases: list[Database]) -> None:
    line = databases[0].prepared_connection()
    pollers = [PollKey(1, 1), PollKey(2, 1), PollKey(1, 2)]

    async def anything() -> list[bool]:
        _, peeks = await leases_sql.peek(line, pollers, {})
        assert [peeks[poller].known_model for poller in pollers] == [True, True, False]
        return [peeks[poller].anything for poller in pollers]

    assert await anything() == [False, False, False]
    async with databases[0].connection() as connection:
        await add_jobs(connection, 1, models=1)
    assert await anything() == [True, True, False]
    await poll(databases[0], 1, 1)
    assert await anything() == [True, False, False]
    await databases[0].pool.execute("delete from leases")
    await databases[0].pool.execute("update jobs set designated = 2")
    assert await anything() == [False, True, False]


async def test_peek_takes_no_look_at_bids_of_a_model_that_was_bare_at_this_block(databases: list[Database]) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, 1, models=1)
    line = databases[0].prepared_connection()

    async def any_bid(bare: dict[int, bytes]) -> bool:
        _, peeks = await leases_sql.peek(line, [PollKey(1, 1)], bare)
        return peeks[PollKey(1, 1)].any_bid

    assert not await any_bid({1: b"\x01"})
    assert await any_bid({1: b"\x02"})  # at another block
    assert await any_bid({})


async def test_poll_that_begins_beyond_the_oldest_comes_back_to_them_when_it_would_go_short(
    databases: list[Database],
) -> None:
    async with databases[0].connection() as connection:
        await add_jobs(connection, 6, models=1)

    async def blocks(after: int, free: int) -> list[int]:
        (held,) = await poll_together(databases[0], LeaseRequest(PollKey(1, 1), free, JobPlace(after, 0)))
        await databases[0].pool.execute("delete from leases")
        return held

    assert await blocks(3, 2) == [4, 5]
    assert await blocks(5, 3) == [1, 2, 6]
    assert await blocks(6, 9) == [1, 2, 3, 4, 5, 6]
