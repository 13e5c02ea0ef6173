"""How long a poll waits for work, what ends the wait, and which polls it wakes."""

from typing import Any

import attrs
import pytest

from coordinatord.api.book.polls import PollAnswer
from tests.unit.coordinatord.book.polling import (
    FREE,
    HELD_BY_OTHERS,
    HERE,
    KEY,
    NOTHING,
    OFFERED,
    World,
    held,
    waited,
)

pytestmark = pytest.mark.anyio


async def test_waiting_poll_stays_live_until_its_end(world: World) -> None:
    world.outlooks = [NOTHING]
    leased, lasted = await waited(world)
    assert (leased, lasted) == (PollAnswer(HERE, []), 25.0)
    assert world.told("wait") == [(25.0,)]
    assert (world.told("live"), world.told("stays")) == ([(KEY, 2)], [(KEY, 2)])  # recorded once
    assert (world.told("place"), world.told("waits")) == ([("us", "poll")], [(KEY, 2, False)])


async def test_poll_looks_again_by_itself_while_others_hold_jobs(world: World) -> None:
    world.outlooks = [HELD_BY_OTHERS]
    _, lasted = await waited(world, seconds=5)
    assert (world.told("wait"), lasted) == ([(2.0,), (2.0,), (1.0,)], 5.0)


async def test_woken_poll_returns_the_available_jobs(world: World) -> None:
    world.outlooks, world.leases, world.wakes, world.wait_takes = [NOTHING, FREE], [[held(1)]], [True], 3.0
    leased, lasted = await waited(world)
    assert ([row.job_id[0] for row in leased.jobs], lasted) == ([1], 3.0)
    assert (world.told("passed on"), world.told("looked")) == ([], [()])


async def test_jobs_unsuitable_for_the_woken_poll_are_passed_on(world: World) -> None:
    """The jobs exist, but the poll's filters exclude them, so it returns none."""
    world.outlooks, world.wakes, world.wait_takes = [NOTHING, FREE], [True, False], 10.0
    await waited(world)
    assert len(world.told("passed on")) == 1  # for the wake-up, not for the poll's own next look


async def test_missed_jobs_are_passed_on_after_the_time_is_over(world: World) -> None:
    world.outlooks, world.wakes = [NOTHING, FREE], [True]
    await waited(world)
    assert (len(world.told("wait")), len(world.told("passed on"))) == (1, 1)


async def test_poll_with_only_an_offer_passes_jobs_on(world: World) -> None:
    world.outlooks, world.wakes, world.wait_takes = [NOTHING, attrs.evolve(FREE, has_offers=True)], [True], 1.0
    world.offers = [["a job"]]
    leased, _ = await waited(world, wants_offers=True)
    assert (leased.offers, len(world.told("passed on"))) == (["a job"], 1)


async def test_poll_of_a_provider_without_room_passes_its_wake_on(world: World) -> None:
    world.outlooks, world.wakes = [attrs.evolve(FREE, may_claim=False, has_offers=True)], [True]
    await waited(world, seconds=2, wants_offers=True)
    assert (len(world.told("passed on")), len(world.told("offer passed on"))) == (1, 1)
    assert (world.told("lease"), world.told("offers")) == ([], [])


async def test_poll_without_wake_up_or_jobs_passes_nothing_on(world: World) -> None:
    for outlook, woken in ((attrs.evolve(FREE, has_offers=True), False), (NOTHING, True)):
        world.outlooks, world.wakes = [outlook], [woken]
        await waited(world, wants_offers=True)
    assert (world.told("passed on"), world.told("offer passed on")) == ([], [])


async def test_poll_that_leaves_jobs_looks_again_by_itself(world: World) -> None:
    """Jobs were left, for example because others lease them or because the poll was at its capacity. Either can
    change without a wake-up."""
    await waited(world, seconds=3)
    assert world.told("wait") == [(2.0,), (1.0,)]


async def test_poll_that_finds_something_at_once_does_not_wait(world: World) -> None:
    world.leases = [[held(1)]]
    _, lasted = await waited(world)
    assert (lasted, world.told("wait")) == (0.0, [])


@pytest.mark.parametrize("more", [{"seconds": 0}, {"free": 0}, {"caller": "somebody without a place"}])
async def test_poll_without_time_room_or_place_is_answered_at_once(world: World, more: dict[str, Any]) -> None:
    world.outlooks = [NOTHING]
    assert (await waited(world, **more))[1] == 0.0
    assert (world.told("wait"), world.told("place")) == ([], [])


async def test_poll_is_answered_when_the_process_stops(world: World) -> None:
    world.outlooks, world.closed = [NOTHING], True
    assert (await waited(world))[1] == 0.0


async def test_offer_ends_a_wait_and_a_foreign_one_is_passed_on(world: World) -> None:
    world.outlooks, world.wakes, world.wait_takes = [NOTHING, OFFERED], [True], 1.0
    world.offers = [[], ["a job"]]
    leased, lasted = await waited(world, wants_offers=True)
    assert (leased.offers, lasted) == (["a job"], 2.0)
    assert (len(world.told("offer passed on")), world.told("waits")) == (1, [(KEY, 2, True)])
