"""Jobs of an owner who cannot pay are withheld from all polls, unless the chain's answer comes too late."""

from typing import Any

import anyio
import pytest

from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.payment_token import Funds
from tests.unit.coordinatord.book.polling import HERE, NEXT, POOR, RICH, World, funding, held, looked, row

pytestmark = pytest.mark.anyio


async def test_new_jobs_that_cannot_be_paid_are_held_back_and_replaced(world: World) -> None:
    world.leases = [[held(1, owner=POOR), held(2), held(3, is_new=False)], [held(2, is_new=False)]]
    world.funds = [Funds({POOR: 9, RICH: 100}, {bytes([2]) * 32})]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.jobs] == [2]
    assert world.told("funds") == [([POOR, RICH], [1, 2])]  # only the new jobs are read
    assert world.told("held back") == [([bytes([2]) * 32],)]
    assert world.told("held back beyond") == [(POOR, 9)]


async def test_authorisation_that_is_used_is_held_back_alone(world: World) -> None:
    world.funds = [Funds({RICH: 100}, {bytes([1]) * 32})]
    assert await funding(world).hold_back_unpaid([row(1), row(2)], HERE)
    assert (world.told("held back"), world.told("held back beyond")) == ([([bytes([1]) * 32],)], [])


async def test_missing_balance_is_read_again(world: World) -> None:
    world.funds = [Funds({}, set()), Funds({RICH: 5}, set())]
    paid = funding(world)
    assert not await paid.hold_back_unpaid([row(1)], HERE)
    assert await paid.hold_back_unpaid([row(1)], HERE)
    assert world.told("funds") == [([RICH], [1]), ([RICH], [])]


async def test_answer_for_an_old_block_does_not_count(world: World) -> None:
    world.answers = anyio.Event()
    world.funds = [Funds({RICH: 100}, set()), Funds({POOR: 5}, set()), Funds({RICH: 50}, set())]
    paid = funding(world)
    found: list[Funds] = []

    async def ask() -> None:
        found.append(await paid.read_funds([row(1)], HERE))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(paid.read_funds, [row(2, owner=POOR)], NEXT)
        await anyio.wait_all_tasks_blocked()
        world.answers.set()
    assert found == [Funds({RICH: 100}, set())]
    assert await paid.read_funds([row(1)], NEXT) == Funds({POOR: 5, RICH: 50}, set())


async def test_owner_who_has_just_enough_is_not_poor(world: World) -> None:
    world.leases = [[held(1, owner=POOR)]]
    world.funds = [Funds({POOR: 10}, set())]
    await looked(world)
    assert len(world.told("lease")) == 1
    assert not world.told("held back") + world.told("held back beyond")


async def test_funds_are_cached_until_the_index_moves(world: World) -> None:
    paid = funding(world)
    one, other = row(1), row(2)
    world.funds = [Funds({RICH: 100}, set()), Funds({}, {bytes([2]) * 32}), Funds({RICH: 50}, set())]
    assert await paid.read_funds([one], HERE) == Funds({RICH: 100}, set())
    assert await paid.read_funds([one], HERE) == Funds({RICH: 100}, set())
    assert await paid.read_funds([one, other], HERE) == Funds({RICH: 100}, {bytes([2]) * 32})
    assert await paid.read_funds([one], NEXT) == Funds({RICH: 50}, set())
    assert world.told("funds") == [([RICH], [1]), ([], [2]), ([RICH], [1])]
    poor = row(3, owner=POOR)
    world.funds = [Funds({POOR: 5}, set())]
    await paid.read_funds([one, poor], NEXT)
    assert world.told("funds")[-1] == ([POOR], [3])


@pytest.mark.parametrize("silence", [None, Retryable("chain_unreachable", "away")])
async def test_silent_node_delays_no_poll_and_is_skipped_for_a_while(
    world: World, silence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinatord.api.book.funding._NODE_TIMEOUT_S", 0.01)
    paid = funding(world)
    world.funds = [silence, Funds({RICH: 5}, set())]
    assert not await paid.hold_back_unpaid([row(1)], HERE)
    world.now += 4.9
    assert not await paid.hold_back_unpaid([row(1)], HERE)
    assert len(world.told("funds")) == 1
    world.now += 0.1
    assert await paid.hold_back_unpaid([row(1)], HERE)
