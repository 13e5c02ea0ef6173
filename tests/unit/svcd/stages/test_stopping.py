"""Told to stop: no more claims, no more asks, and nothing held is left behind unsaid."""

import pytest
import trio
from trio.testing import MockClock

from svcd.work import Output, Work
from tests.fakes.market import Market
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend

pytestmark = pytest.mark.trio


def lasting(seconds: float) -> Backend:
    async def act(work: Work) -> Output:
        await trio.sleep(seconds)
        return Output(work.input, 1)

    return Backend(act)


async def test_what_can_be_finished_within_the_grace_is_settled(
    autojump_clock: MockClock, market: Market, start: Start
) -> None:
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


async def test_what_cannot_be_finished_is_failed_in_the_last_of_the_grace(
    autojump_clock: MockClock, market: Market, start: Start
) -> None:
    job = market.post()
    async with start(backend=lasting(300)) as running:
        await trio.sleep(5)
        began = trio.current_time()
        running.drain.begin()
        assert await running.end_of(job) == ("failed", "unservable")
        assert trio.current_time() - began <= 60
    assert market.jobs[job]["ended_because"] == 3


async def test_provider_without_jobs_stops_at_once(autojump_clock: MockClock, market: Market, start: Start) -> None:
    async with start() as running:
        await trio.sleep(5)
        began = trio.current_time()
        running.drain.begin()
        await running.until(lambda: market.asks == {})
        assert trio.current_time() - began < 5
