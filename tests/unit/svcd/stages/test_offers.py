import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svcd.base.clock import Clock
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.offers import Exclusions


async def test_earliest_deadline_first_and_stable() -> None:
    channel = DeadlineChannel[str](4)
    for deadline, item in ((3.0, "late"), (1.0, "first"), (1.0, "second"), (2.0, "third")):
        await channel.send(deadline, item)
    assert [await channel.receive() for _ in range(4)] == ["first", "second", "third", "late"]


async def test_sender_waits_while_it_is_full_and_a_drain_makes_room() -> None:
    channel, sent = DeadlineChannel[str](1), trio.Event()
    await channel.send(1.0, "one")

    async def send() -> None:
        await channel.send(0.0, "two")
        sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert not sent.is_set()
        assert channel.drain() == ["one"]
        await sent.wait()
    assert await channel.receive() == "two"


async def test_receiver_that_is_cancelled_takes_nothing_with_it() -> None:
    channel = DeadlineChannel[str](1)
    with trio.move_on_after(0):
        await channel.receive()
    await channel.send(1.0, "one")
    assert await channel.receive() == "one"


@pytest.mark.parametrize("off", [-900.0, 900.0])
async def test_skip_lasts_as_long_despite_a_clock_error(off: float) -> None:
    wrong = off
    exclusions = Exclusions(Clock(local_clock=lambda: 1_000_000 + trio.current_time() + wrong))
    exclusions.exclude_briefly(b"job")
    wrong = 0.0
    await trio.sleep(29)
    assert b"job" in exclusions
    await trio.sleep(2)
    assert b"job" not in exclusions
