"""Polls of a moment, leased together."""

import anyio
import pytest

from coordinatord.api.book.book_sql import JobFilter
from coordinatord.api.book.leases_sql import START, JobPlace, PollKey
from coordinatord.api.book.polls import Wish
from tests.unit.coordinatord.book.polling import KEY, World, held, leasing

pytestmark = pytest.mark.anyio


async def test_polls_of_one_provider_at_a_time_are_one_request_of_the_larger_wish(world: World) -> None:
    together = leasing(world)
    async with anyio.create_task_group() as tasks:
        for free in (3, 5, 1):
            tasks.start_soon(together.take, Wish(KEY, free, JobFilter()))
        tasks.start_soon(together.take, Wish(PollKey(9, 1), 1, JobFilter()))
    assert [asks for asks, *_ in world.told("lease")] == [[(4, 1, 5, START), (9, 1, 1, START)]]


async def test_what_was_leased_is_remembered_by_model(world: World) -> None:
    world.leases = [[held(1)]]
    world.heads = {2: JobPlace(5, 5)}
    together = leasing(world)
    async with anyio.create_task_group() as tasks:
        for model in (1, 2):
            tasks.start_soon(together.take, Wish(PollKey(4, model), 3, JobFilter()))
    assert [asks for asks, *_ in world.told("lease")] == [[(4, 1, 3, START), (4, 2, 3, JobPlace(5, 5))]]
    assert sorted(world.told("leased")) == [(1, [1]), (2, [1])]


async def test_more_polls_than_one_request_takes_are_two(world: World) -> None:
    together = leasing(world)
    async with anyio.create_task_group() as tasks:
        for provider in range(65):
            tasks.start_soon(together.take, Wish(PollKey(provider, 1), 1, JobFilter()))
    assert [len(asks) for asks, *_ in world.told("lease")] == [64, 1]


@pytest.mark.parametrize("filters", [JobFilter(), JobFilter(min_rate_in=3)])
async def test_while_one_request_is_answered_the_next_runs_and_others_wait(world: World, filters: JobFilter) -> None:
    world.answers = anyio.Event()
    together = leasing(world)
    async with anyio.create_task_group() as tasks:
        for provider in (1, 2, 3, 4):
            tasks.start_soon(together.take, Wish(PollKey(provider, 1), 1, filters))
            await anyio.wait_all_tasks_blocked()
        assert [asks[0][0] for asks, *_ in world.told("lease")] == [1, 2]
        world.answers.set()
    assert sum(len(asks) for asks, *_ in world.told("lease")) == 4


async def test_polls_with_filters_go_one_by_one(world: World) -> None:
    together = leasing(world)
    async with anyio.create_task_group() as tasks:
        for rate in (3, 4):
            tasks.start_soon(together.take, Wish(KEY, 1, JobFilter(min_rate_in=rate)))
    assert sorted(filters.min_rate_in for _, filters, *_ in world.told("lease")) == [3, 4]
