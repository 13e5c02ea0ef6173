from collections.abc import Callable

import httpx
import pytest
import trio

from common.messages.providers import Ask
from svcd.backends.discount import AskRates
from svcd.stages.asks import find_changed_asks
from tests.support.fakes.market import START, Market
from tests.support.fakes.market_answers import answer, error, instead, lost
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import count, model_for

MODEL = model_for("demo/text", {"text"}, asks={60: AskRates(1, 2), 600: AskRates(3, 4)})


def test_removed_asks_are_withdrawn_first() -> None:
    stands, gone, cheaper = Ask(1, 60, 5, 5), Ask(1, 300, 5, 5), Ask(1, 600, 4, 4)
    assert find_changed_asks({stands, cheaper}, {stands, gone, Ask(1, 600, 5, 5)}) == [Ask(1, 300, 0, 0), cheaper]


async def test_asks_are_published_and_old_ones_withdrawn(market: Market, start: Start) -> None:
    market.asks[3, 60] = (9, 9)
    async with start(models=(MODEL,)):
        await trio.sleep(1)
        assert market.asks == {(1, 60): (1, 2), (1, 600): (3, 4)}
        assert count("svcd_asks_published") == 2
        await trio.sleep(300)
    assert len(market.snapshots) == 1


async def test_signed_at_grows_over_restarts_and_clock_changes(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)):
        await trio.sleep(1)
    market.now = lambda: START - 1000  # the clock was set back
    market.asks.clear()
    async with start(models=(MODEL,)):
        await trio.sleep(1)
    assert market.snapshots == [START, START + 1]


async def test_clock_set_a_year_ahead_leaves_no_trace(market: Market, start: Start) -> None:
    right = market.now
    market.now = lambda: right() + 365 * 86_400
    async with start(models=(MODEL,)):
        market.now = right  # the coordinator's clock; the daemon keeps the wrong one
        await trio.sleep(20)
    assert market.snapshots == []
    async with start(models=(MODEL,)):
        await trio.sleep(1)
    assert [signed - START < 60 for signed in market.snapshots] == [True]


@pytest.mark.parametrize("ahead", [100, 2000, 3500])
async def test_stale_snapshot_is_signed_further_ahead(ahead: int, market: Market, start: Start) -> None:
    market.snapshots.append(START + ahead)
    async with start(models=(MODEL,)):
        await trio.sleep(60)
    assert market.asks == {(1, 60): (1, 2), (1, 600): (3, 4)}


@pytest.mark.parametrize("trouble", [lost(), instead(error(504, "0xab", "receipt_timeout"))])
async def test_unanswered_publication_is_compared_before_a_retry(trouble: object, market: Market, start: Start) -> None:
    market.scripts["asks!"].append(trouble)  # type: ignore[arg-type]
    async with start(models=(MODEL,)):
        await trio.sleep(60)
    assert market.asks == {(1, 60): (1, 2), (1, 600): (3, 4)}


async def test_interrupted_publication_is_withdrawn(market: Market, start: Start) -> None:
    async def unanswered(perform: Callable[[], httpx.Response]) -> httpx.Response:
        perform()
        await trio.sleep_forever()
        raise AssertionError

    market.scripts["asks!"].append(unanswered)
    market.always["asks"] = instead(answer(200, {"asks": []}))
    async with start(models=(MODEL,)) as running:
        await running.until(lambda: market.asks == {(1, 60): (1, 2), (1, 600): (3, 4)})
        running.drain.begin()
        await running.until(lambda: market.asks == {})
    assert len(market.snapshots) == 2


async def test_asks_of_an_unlisted_provider_wait(market: Market, start: Start) -> None:
    market.listed = False
    async with start(models=(MODEL,)):
        await trio.sleep(200)
        assert market.snapshots == []
        market.listed = True
        await trio.sleep(100)
        assert market.asks == {(1, 60): (1, 2), (1, 600): (3, 4)}
    assert len(market.snapshots) == 1


async def test_model_added_to_the_catalogue_is_offered(market: Market, start: Start) -> None:
    model_id = market.models.pop("demo/text")
    job = market.post()
    async with start(models=(MODEL,)) as running:
        await trio.sleep(100)
        assert (market.asks, market.polls) == ({}, [])
        market.models["demo/text"] = model_id
        assert await running.end_of(job) == ("settled", None)
        await trio.sleep(60)
        assert market.asks == {(1, 60): (1, 2), (1, 600): (3, 4)}
