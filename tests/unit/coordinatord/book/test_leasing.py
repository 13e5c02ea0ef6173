"""Leasing transactions: how many run at a time, and when one is retried."""

import anyio
import attrs
import pytest

from tests.unit.coordinatord.book.polling import POOR, WANTED, World, held, looked, of, poll_of

pytestmark = pytest.mark.anyio


async def test_two_transactions_run_at_a_time(world: World) -> None:
    world.answers = anyio.Event()
    polls = of(world)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(polls.answer, poll_of())
        await anyio.wait_all_tasks_blocked()
        assert len(world.told("lease")) == 2
        world.answers.set()
    assert len(world.told("lease")) == 4


async def test_polls_of_a_moment_share_one_read(world: World) -> None:
    polls = of(world)
    async with anyio.create_task_group() as tasks:
        for model in (1, 2, 3):
            tasks.start_soon(polls.answer, poll_of(wanted=attrs.evolve(WANTED, model_id=model)))
    assert [len(pollers) for pollers in world.told("outlook")] == [3]


async def test_poll_returns_its_leases_after_three_rounds(world: World) -> None:
    world.leases = [[held(1, owner=POOR)]]
    await looked(world)
    assert [free for _, free, _, _ in world.told("lease")] == [2, 2, 2, 0]
