from collections.abc import Awaitable, Callable

import anyio
import pytest

from coordinatord.base.concurrency import RELAY_QUEUE_FULL, BurstRoom
from coordinatord.base.errors import Retryable

pytestmark = pytest.mark.anyio

FULL = Retryable("relay_unavailable", "full", RELAY_QUEUE_FULL, 1)


class Queue:
    """Takes `places`, and as many again each time that it is emptied; whoever is in it stays for a while."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.looks = 0

    def entering(self, stays: float = 0.0) -> Callable[[], Awaitable[str]]:
        async def act() -> str:
            self.looks += 1
            if self.taken >= self.places:
                raise FULL
            self.taken += 1
            await anyio.sleep(stays)
            return "done"

        return act


async def test_burst_of_four_times_the_places_is_taken_while_the_queue_is_emptied_though_those_in_it_stay() -> None:
    queue, room, done = Queue(16), BurstRoom(RELAY_QUEUE_FULL), []

    async def one() -> None:
        done.append(await room.passing(queue.entering(stays=0.5)))

    async def emptied() -> None:
        while len(done) < 64:
            await anyio.sleep(0.05)
            queue.taken = 0

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(emptied)
            for _ in range(64):
                tasks.start_soon(one)
    assert done == ["done"] * 64


async def test_queue_that_stays_full_refuses_after_the_patience_and_is_not_looked_at_without_end() -> None:
    queue, room, refused = Queue(0), BurstRoom(RELAY_QUEUE_FULL, patience=0.3), []

    async def one() -> None:
        with pytest.raises(Retryable) as full:
            await room.passing(queue.entering())
        refused.append(full.value.code)

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(one)
    assert refused == [RELAY_QUEUE_FULL] * 100
    assert queue.looks < 100 * 5  # a hundred that look every 20 ms would have been 1,500 and more


async def test_other_refusal_is_told_at_once() -> None:
    other = Retryable("relay_unavailable", "no funds", "relayer_funds")
    asked = []

    async def act() -> None:
        asked.append(1)
        raise other

    with pytest.raises(Retryable) as raised:
        await BurstRoom(RELAY_QUEUE_FULL).passing(act)
    assert raised.value is other
    assert len(asked) == 1
