"""Polls of a moment, leased together."""

import anyio
import pytest

from coordinatord.book.leases_sql import START, PollKey
from coordinatord.book.polls import Wish
from coordinatord.book.sql import JobFilter
from tests.unit.coordinatord.book.polling import KEY, World, of

pytestmark = pytest.mark.anyio


async def test_polls_of_one_provider_at_a_time_are_one_request_of_the_larger_wish(world: World) -> None:
    both = of(world)
    async with anyio.create_task_group() as tasks:
        for free in (3, 5, 1):
            tasks.start_soon(both._leasing.take, Wish(KEY, free, JobFilter()))
        tasks.start_soon(both._leasing.take, Wish(PollKey(9, 1), 1, JobFilter()))
    assert [asks for asks, *_ in world.told("lease")] == [[(4, 1, 5, START), (9, 1, 1, START)]]


async def test_polls_with_filters_go_one_by_one(world: World) -> None:
    both = of(world)
    async with anyio.create_task_group() as tasks:
        for rate in (3, 4):
            tasks.start_soon(both._leasing.take, Wish(KEY, 1, JobFilter(min_rate_in=rate)))
    assert sorted(filters.min_rate_in for _, filters, *_ in world.told("lease")) == [3, 4]
