import trio

from svcd.stages.turns import Turns


async def test_earliest_deadline_gets_the_next_turn() -> None:
    turns, order = Turns(1), []

    async def work(deadline: float) -> None:
        async with turns.turn(deadline):
            order.append(deadline)
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for at, deadline in enumerate((50, 30, 40, 20)):
            nursery.start_soon(work, deadline)
            await trio.sleep(0.1 * (at + 1) / 10)
    assert order == [50, 20, 30, 40]


async def test_cancelled_waiter_loses_no_turn() -> None:
    turns = Turns(1)

    async def wait() -> None:
        with trio.move_on_after(1):
            async with turns.turn(2):
                raise AssertionError("its turn came after it was cancelled")

    async with turns.turn(1), trio.open_nursery() as waiters:
        waiters.start_soon(wait)
    with trio.fail_after(1):
        async with turns.turn(3):
            pass
