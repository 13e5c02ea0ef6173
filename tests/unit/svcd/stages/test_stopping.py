"""Shutdown: no more claims and asks, and every held job is settled or failed. Turns of jobs."""

from collections.abc import Callable

import httpx
import trio

from svcd.journal.work import ModelWork, WorkOutput
from svcd.stages.turns import Turns
from tests.support.fakes.market import Market
from tests.support.fakes.market_answers import unreached
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend


def lasting(seconds: float) -> Backend:
    async def act(work: ModelWork) -> WorkOutput:
        await trio.sleep(seconds)
        return WorkOutput(work.input, 1)

    return Backend(act)


async def test_work_that_fits_the_grace_is_settled(market: Market, start: Start) -> None:
    job = market.post()
    async with start(backend=lasting(20)) as running:
        await trio.sleep(5)
        running.drain.begin()
        assert await running.end_of(job) == ("settled", None)
        await trio.sleep(1)
        assert market.asks == {}
        polls = len(market.polls)
        await trio.sleep(100)
        assert len(market.polls) == polls


async def test_unfinished_work_is_failed_at_the_end_of_grace(market: Market, start: Start) -> None:
    job = market.post()
    async with start(backend=lasting(300)) as running:
        await trio.sleep(5)
        began = trio.current_time()
        running.drain.begin()
        assert await running.end_of(job) == ("failed", "unservable")
        assert trio.current_time() - began <= 60
    assert market.jobs[job]["ended_because"] == 3


async def test_provider_without_jobs_stops_at_once(market: Market, start: Start) -> None:
    async with start() as running:
        await trio.sleep(5)
        began = trio.current_time()
        running.drain.begin()
        await running.until(lambda: market.asks == {})
        assert trio.current_time() - began < 5


async def test_claim_answered_while_stopping_is_worked_off(market: Market, start: Start) -> None:
    async def slowly(perform: Callable[[], httpx.Response]) -> httpx.Response:
        await trio.sleep(20)
        return perform()

    market.always["claim"] = slowly
    job = market.post()
    async with start() as running:
        await trio.sleep(5)
        running.drain.begin()
        assert await running.end_of(job) == ("settled", None)


async def test_result_unsettled_within_grace_is_settled_later(market: Market, start: Start) -> None:
    market.always["settle"] = unreached()
    job = market.post()
    async with start() as running:
        await running.until(lambda: running.entry(job)[0] == "sealed")
        running.drain.begin()
        await trio.sleep(61)
        assert running.entry(job)[0] == "sealed"  # finished work is kept
    del market.always["settle"]
    second = lasting(0)
    async with start(backend=second) as running:
        assert await running.end_of(job) == ("settled", None)
    assert second.ran == []


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
