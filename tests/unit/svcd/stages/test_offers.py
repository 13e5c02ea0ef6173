"""Offers, also before their post is in a block: how they are checked, and how their claims end."""

from collections.abc import Callable

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from common.scalars import hex_of
from common.secp256k1 import Wallet
from svcd.base.clock import Clock
from svcd.stages.deadline_channel import DeadlineChannel
from svcd.stages.offers import Exclusions
from tests.support.fakes.market import Market
from tests.support.fakes.market_answers import answer, instead
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import count, model_for


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


MODEL = model_for("demo/text", {"text"})


async def test_job_offered_before_its_block_is_claimed_run_and_settled(market: Market, start: Start) -> None:
    job = market.post(market.container())
    market.offer(job)
    taken = count("svcd_pending_offers_total", outcome="taken")
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
        assert running.opened(job).job_id == bytes.fromhex(job[2:])
        assert count("svcd_pending_offers_total", outcome="taken") == taken + 1


_STRANGER = Wallet(b"\x66" * 32)


@pytest.mark.parametrize(
    "changed",
    [
        {"signature": hex_of(_STRANGER.sign(b"\x01" * 32))},
        {"auth_sig": hex_of(_STRANGER.sign(b"\x01" * 32))},
        {"amount": "0"},
        {"amount": "9"},
        {"owner": hex_of(_STRANGER.address)},
        {"rate_out": "201"},
        {"designated": "8"},
        {"sla_secs": "77"},
        {"task_cid": "../x"},
    ],
)
async def test_unsigned_or_unsuitable_offer_is_not_claimed(
    changed: dict[str, str], market: Market, start: Start
) -> None:
    offered, job = market.post(market.container()), market.post(market.container())
    market.offer(offered, **changed)
    left = count("svcd_pending_offers_total", outcome="left")
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
        assert running.entry(offered) == ("", None)
        await running.until(lambda: not market.pending)
        assert count("svcd_pending_offers_total", outcome="left") == left + 1
    assert market.calls.count("claim") == 1


async def test_more_offers_than_were_requested_are_ignored(market: Market, start: Start) -> None:
    forged = market.post(market.container())
    market.offer(forged, auth_sig=hex_of(_STRANGER.sign(b"\x01" * 32)))
    offers = [market.pending.pop(forged)] * 50
    market.scripts["poll"] = [instead(answer(200, {"jobs": [], "pending": offers, "as_of_block": "1"}))]
    left = count("svcd_pending_offers_total", outcome="left")
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(market.post(market.container())) == ("settled", None)
    assert count("svcd_pending_offers_total", outcome="left") == left + 4  # the model's slots


async def test_job_whose_post_is_refused_is_forgotten_and_never_run(market: Market, start: Start) -> None:
    job = market.post(market.container())
    market.offer(job)
    market.always["claim"] = instead(answer(409, {"ok": False, "reason": "UnknownJob"}))
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("not_claimed", "UnknownJob")
        assert "fetch" not in market.calls
        del market.always["claim"]
        market.jobs[job] = market.posting.pop(job)  # the post is mined after all, so the job is in the book
        await running.until(lambda: running.entry(job) == ("settled", None))


async def test_poll_that_took_an_offer_is_followed_by_the_next_at_once(market: Market, start: Start) -> None:
    async def held(perform: Callable[[], httpx.Response]) -> httpx.Response:
        await trio.sleep(5)
        return perform()

    async def at_once(perform: Callable[[], httpx.Response]) -> httpx.Response:
        return perform()

    market.offer(market.post(market.container()))
    market.scripts["poll"] = [at_once, held]
    async with start(models=(model_for("demo/text", {"text"}, poll_seconds=600.0),)) as running:
        await running.until(lambda: not market.pending)
        second = market.post(market.container())
        market.offer(second)
        began = trio.current_time()
        assert await running.end_of(second) == ("settled", None)
        assert trio.current_time() - began < 60
