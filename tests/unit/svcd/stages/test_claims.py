"""Claims: whether a rejection concerns the job or the provider, and how a claim with an unknown outcome ends."""

import pytest
import trio
from trio.testing import MockClock

from tests.support.fakes.market import OPEN, Market
from tests.support.fakes.market_answers import answer, behind, instead, lost
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import model_for

pytestmark = pytest.mark.trio

MODEL = model_for("demo/text", {"text"})


async def test_refused_resend_of_a_mined_claim_is_ours(autojump_clock: MockClock, market: Market, start: Start) -> None:
    market.scripts["claim"].append(lost())
    market.scripts["job"] += [behind(state=OPEN, provider_id="0")] * 2
    job = market.post()
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    assert market.calls.count("claim") == 2


async def test_no_slot_is_lost_when_stopped_with_busy_claimers(
    autojump_clock: MockClock, market: Market, start: Start
) -> None:
    async def unanswered(_: object) -> None:
        await trio.sleep_forever()

    market.always["claim"] = unanswered  # type: ignore[assignment]
    template = market.jobs[market.post()]
    for n in range(600):  # more than the 256 claimers and their channel can take
        job = f"0x{n:064x}"
        market.jobs[job] = {**template, "job_id": job}
    async with start(models=(model_for("demo/text", {"text"}, slots=600),)) as running:
        await running.until(lambda: running.ground.slots.held_slots > 512)
        running.drain.begin()
        await running.until(lambda: running.ground.slots.held_slots == 256)  # pending claims


async def test_settled_job_in_a_lagging_book_is_not_reclaimed(
    autojump_clock: MockClock, market: Market, start: Start
) -> None:
    job = market.post()
    offered = dict(market.jobs[job])
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
        market.always["poll"] = instead(answer(200, {"jobs": [offered], "as_of_block": "1"}))
        await trio.sleep(60)
        assert running.entry(job) == ("settled", None)
        assert running.ground.slots.held_slots == 0
    async with start(models=(MODEL,)) as running:  # and not after a restart
        await trio.sleep(60)
        assert running.entry(job) == ("settled", None)
    assert market.calls.count("claim") == 1
