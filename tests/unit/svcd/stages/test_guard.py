"""A claim that would cost reputation is not sent. /healthz reports unhealthy, and claims resume when the cause is
gone."""

import pytest
import trio

from common.box import SecretKey
from tests.support.fakes.market import CLAIMED, OPEN, Market
from tests.support.fakes.market_answers import error, instead
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, Running, count, model_for

MODEL = model_for("demo/text", {"text"})


async def withheld(running: Running, market: Market, reason: str, words: str) -> None:
    """Check that no claim or poll is sent, and that the reason is reported."""
    await running.until(lambda: running.daemon.health.claim_holds is not None)
    job = market.post()
    await running.until(lambda: bool(running.daemon.health.claim_holds))
    polled = len(market.polls)
    await trio.sleep(60)
    assert len(market.polls) == polled
    assert running.entry(job) == ("", None)
    assert words in (running.daemon.health.problem or "")
    assert count("svcd_claims_withheld", reason=reason) == 1


async def all_is_well(running: Running, market: Market, reason: str) -> None:
    """Check that the waiting jobs run."""
    for job in [job for job, row in market.jobs.items() if row["state"] == OPEN]:
        assert await running.end_of(job) == ("settled", None)
    assert running.daemon.health.problem is None
    assert count("svcd_claims_withheld", reason=reason) == 0


async def test_unpublished_box_key_stops_claims(market: Market, start: Start) -> None:
    market.registered_box = SecretKey(b"\x66" * 32).public
    async with start(models=(MODEL,)) as running:
        await withheld(running, market, "box_key", "publish the configured key with `svcd identity`")
        market.registered_box = None
        await all_is_well(running, market, "box_key")


async def test_changed_box_key_stops_claims(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(market.post()) == ("settled", None)
        market.registered_box = SecretKey(b"\x66" * 32).public
        await trio.sleep(40)
        await withheld(running, market, "box_key", "the registry has")


@pytest.mark.parametrize("minutes", [-14, 14])
async def test_clock_off_by_minutes_is_corrected(minutes: int, market: Market, start: Start) -> None:
    market.behind = 60.0 * minutes
    async with start(models=(MODEL,)) as running:
        assert running.ground.clock.now() == pytest.approx(market.now() - market.behind, abs=2)
        assert await running.end_of(market.post(expires_at=str(int(market.now() - market.behind) + 600))) == (
            "settled",
            None,
        )
        assert running.daemon.health.problem is None


async def test_wrong_coordinator_clock_is_overruled_by_the_chain(market: Market, start: Start) -> None:
    market.behind, market.chain_minds_time = -840.0, True
    async with start(models=(MODEL,)) as running:
        job = market.post(expires_at=str(int(market.now()) + 3600))
        await running.until(lambda: running.entry(job) == ("settled", None))
    assert market.calls.count("claim") == 2


async def test_clock_that_is_off_by_more_claims_nothing(market: Market, start: Start) -> None:
    market.behind = 1200.0
    async with start(models=(MODEL,)) as running:
        await withheld(running, market, "clock", "1200 s ahead of the coordinator's, but svcd corrects at most 900 s")
        market.behind = 0.0
        await all_is_well(running, market, "clock")


async def test_unknown_name_stops_only_its_model(market: Market, start: Start) -> None:
    backend = Backend(unknown="http://h/v1/models does not list 'lama'; it lists llama")
    async with start(models=(MODEL,), backend=backend) as running:
        await withheld(
            running,
            market,
            "model_name",
            "demo/text: http://h/v1/models does not list 'lama'; it lists llama: set models",
        )
        assert not running.daemon.health.withholds("demo/image")
        backend.unknown = None
        await all_is_well(running, market, "model_name")


async def test_backend_that_does_not_answer_stops_its_model_alone(market: Market, start: Start) -> None:
    backend = Backend(up=False)
    async with start(models=(MODEL,), backend=backend) as running:
        await withheld(running, market, "backend", "demo/text: the backend does not answer: start the backend")
        assert not running.daemon.health.withholds("demo/image")
        backend.up = True
        await all_is_well(running, market, "backend")


async def test_unknown_window_is_reported_and_others_continue(market: Market, start: Start) -> None:
    market.windows = [3600]
    both = model_for("demo/text", {"text"}, asks={600: MODEL.asks[600], 3600: MODEL.asks[600]})
    async with start(models=(both,)) as running:
        unsold, sold = market.post(), market.post(market.container(), sla_secs="3600")
        assert await running.end_of(sold) == ("settled", None)
        assert running.entry(unsold) == ("", None)
        problem = running.daemon.health.problem or ""
        assert "demo/text: the market has no window of 600 s, only 3600: change sla_seconds" in problem
        assert count("svcd_claims_withheld", reason="window") == 1
        market.windows = [600, 3600]
        await all_is_well(running, market, "window")


async def test_daemon_that_polls_already_keeps_another_from_beginning(market: Market, start: Start) -> None:
    market.rival, market.asks = True, {(1, 600): (100, 200)}
    async with start(models=(MODEL,)) as running:
        await withheld(running, market, "other_daemon", "stop the other daemon, or give this daemon another wallet")
        market.rival = False
        await all_is_well(running, market, "other_daemon")


@pytest.mark.parametrize("rates", [(100, 200), (5, 5)], ids=["the same asks", "other asks"])
async def test_second_daemon_leaves_the_firsts_asks_alone(rates: tuple[int, int], market: Market, start: Start) -> None:
    market.rival, market.asks = True, {(1, 600): rates}
    async with start(models=(MODEL,)) as running:
        await trio.sleep(200)
        assert (market.asks, market.snapshots) == ({(1, 600): rates}, [])
        running.drain.begin()
        await trio.sleep(100)
    assert (market.asks, market.snapshots) == ({(1, 600): rates}, [])


async def test_daemon_stopped_before_its_first_look_withdraws_nothing(market: Market, start: Start) -> None:
    market.rival, market.asks = True, {(1, 600): (100, 200)}
    market.always["providers"] = instead(error(503, "not_ready", "not_ready"))
    async with start(models=(MODEL,)) as running:
        await trio.sleep(10)
        running.drain.begin()
        await trio.sleep(100)
    assert (market.asks, market.snapshots) == ({(1, 600): (100, 200)}, [])


async def test_asks_of_another_daemon_are_not_withdrawn(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await running.until(lambda: market.asks == {(1, 600): (100, 200)})
        market.asks = {(1, 600): (7, 7), (3, 600): (8, 8)}
        running.drain.begin()
        await trio.sleep(100)
    assert market.asks == {(1, 600): (7, 7), (3, 600): (8, 8)}


async def test_claim_by_another_hand_stops_claims_and_is_left_to_it(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await trio.sleep(100)
        others = market.post(sla_secs="3600", model_id="3")
        market.claim(others)
        await trio.sleep(40)
        await withheld(running, market, "other_daemon", f"it claimed {others}")
        assert running.entry(others) == ("", None)
        assert market.jobs[others]["state"] == CLAIMED
        market.end(others, 1)
        await trio.sleep(700)
        await all_is_well(running, market, "other_daemon")


async def test_job_left_by_the_rival_is_taken_in_its_second_half(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await trio.sleep(100)
        others = market.post(sla_secs="600")
        market.claim(others)
        assert await running.end_of(others) == ("settled", None)
        assert trio.current_time() > 400


async def test_no_poll_before_claims_are_known_to_be_safe(market: Market, start: Start) -> None:
    market.always["providers"] = instead(error(503, "not_ready", "not_ready"))
    job = market.post()
    async with start(models=(MODEL,)) as running:
        await trio.sleep(60)
        assert market.polls == []
        assert running.daemon.health.problem == "no poll was answered lately: no model is polled yet"
        del market.always["providers"]
        assert await running.end_of(job) == ("settled", None)
