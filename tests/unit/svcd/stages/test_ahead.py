"""Jobs that run before their claim is in a block: for which owners, up to which amount, and the cost of a reverted
claim."""

from collections.abc import Callable

import attrs
import httpx
import pytest
import trio

from svcd.config import AheadTable
from svcd.journal.entries import OwnerRecord
from svcd.journal.work import ModelWork, WorkOutput
from svcd.stages.ahead import max_amount_for
from tests.support.fakes.market import Market
from tests.support.fakes.market_answers import answer, instead
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, Running, count, model_for

STAKE = 1  # of a job of the fake market: (1000 * 100 + 1000 * 200) / 10^6, rounded up
TABLE = AheadTable(max_amount=4 * STAKE, max_in_flight=2 * STAKE, settled_jobs=1)
MODEL = model_for("demo/text", {"text"}, ahead=TABLE)


async def earn(market: Market, running: Running) -> None:
    """Settle a job of the owner, so that the daemon runs the owner's next jobs ahead."""
    assert await running.end_of(market.post(market.container())) == ("settled", None)
    market.slow_blocks = True


def offered(market: Market) -> str:
    job = market.post(market.container())
    market.offer(job)
    return job


def _undecided() -> float:
    begun, claimed, unpaid = (count("svcd_jobs_ahead_total", outcome=each) for each in ("begun", "claimed", "unpaid"))
    return begun - claimed - unpaid


async def test_known_owners_job_is_run_ahead_and_settled(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        begun, claimed = count("svcd_jobs_ahead_total", outcome="begun"), count("svcd_jobs_claimed_total")
        job = offered(market)
        await running.until(lambda: "settle behind" in market.calls)
        assert running.entry(job) == ("sealed", None)
        assert count("svcd_jobs_claimed_total") == claimed
        market.mine(job)
        assert await running.end_of(job) == ("settled", None)
        assert running.opened(job).job_id == bytes.fromhex(job[2:])
        await running.until(lambda: count("svcd_jobs_claimed_total") == claimed + 1)
        assert count("svcd_jobs_ahead_total", outcome="begun") == begun + 1
        assert running.entry(job) == ("settled", None)


async def test_refused_claim_ends_work_and_trust(market: Market, start: Start) -> None:
    stopped = trio.Event()

    async def act(_: ModelWork) -> WorkOutput:
        try:
            await trio.sleep(300)
        finally:
            stopped.set()
        raise AssertionError("it was to be stopped")

    unpaid, amount = count("svcd_jobs_ahead_total", outcome="unpaid"), count("svcd_unpaid_amount_total")
    undecided = _undecided()
    backend = Backend()
    async with start(models=(MODEL,), backend=backend) as running:
        await earn(market, running)
        backend.act = act
        job = offered(market)
        await running.until(lambda: len(backend.ran) == 2)
        market.refuse(job)
        assert await running.end_of(job) == ("given_up", "unpaid")
        assert stopped.is_set()
        assert "fail" not in market.calls
        assert count("svcd_jobs_ahead_total", outcome="unpaid") == unpaid + 1
        assert count("svcd_unpaid_amount_total") == amount + STAKE
        assert not running.ground.served_models["demo/text"].breaker.is_open
        backend.act = None
        market.slow_blocks = False
        again = offered(market)
        assert await running.end_of(again) == ("settled", None)  # without running ahead
        assert _undecided() == undecided


async def test_result_that_waits_behind_a_refused_claim_is_dropped(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        job = offered(market)
        await running.until(lambda: "settle behind" in market.calls)
        market.refuse(job)
        assert await running.end_of(job) == ("given_up", "unpaid")
        assert job not in market.results


async def test_an_owner_s_first_job_waits_for_its_claim(market: Market, start: Start) -> None:
    market.slow_blocks = True
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(offered(market)) == ("settled", None)
        assert not market.under_way
        assert "settle behind" not in market.calls


async def test_amount_at_stake_is_bounded(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        jobs = [offered(market) for _ in range(4)]
        await running.until(lambda: market.calls.count("settle behind") == 2)
        ordinary = [job for job in jobs if job not in market.under_way]
        assert [await running.end_of(job) for job in ordinary] == [("settled", None)] * 2
        for job in tuple(market.under_way):
            market.mine(job)
        assert [await running.end_of(job) for job in jobs] == [("settled", None)] * 4


async def test_open_bid_is_never_run_ahead(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        job = market.post(market.container(recipient=market.escrow.public), designated="0")
        market.offer(job)
        assert await running.end_of(job) == ("settled", None)
        assert "settle behind" not in market.calls


async def test_result_from_before_a_kill_is_settled(market: Market, start: Start) -> None:
    """The stored result is settled, although the backend would now return another."""
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        job = offered(market)
        await running.until(lambda: "settle behind" in market.calls)
        sealed = await running.ground.journal.open_result(bytes.fromhex(job[2:]))
    market.mine(job)
    backend = Backend()
    async with start(models=(MODEL,), backend=backend) as running:
        assert await running.end_of(job) == ("settled", None)
        assert backend.ran == []
        assert market.results[job] == sealed


async def test_coordinator_that_knows_no_preference_is_waited_for(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        market.slow_blocks = False
        begun = count("svcd_jobs_claimed_total")
        assert await running.end_of(offered(market)) == ("settled", None)
        assert count("svcd_jobs_claimed_total") == begun + 1


async def test_unknown_claim_outcome_is_left_to_the_settle(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        job = offered(market)
        await running.until(lambda: "settle behind" in market.calls)
        market.always["job"] = instead(answer(503, {}))
        market.always["claim"] = instead(answer(504, {"error": {"code": "0x12", "type": "receipt_timeout"}}))
        market.mine(job)
        assert await running.end_of(job) == ("settled", None)


async def test_silent_coordinator_bounds_the_stake(market: Market, start: Start) -> None:
    """The coordinator claims to have stored the claim, and then reports nothing. The amount at risk stays bounded."""

    async def as_ever(perform: Callable[[], httpx.Response]) -> httpx.Response:
        return perform()

    silent = instead(answer(504, {"error": {"code": "0x12", "type": "receipt_timeout"}}))
    async with start(models=(MODEL,)) as running:
        await earn(market, running)
        market.always["job"] = instead(answer(503, {}))
        begun = count("svcd_jobs_ahead_total", outcome="begun")
        for each in (1, 2):
            market.scripts["claim"] = [as_ever, silent]
            job = offered(market)
            await running.until(lambda each=each: market.calls.count("claim behind") == each)  # type: ignore[misc]
            market.under_way.pop(job).set()
        assert count("svcd_jobs_ahead_total", outcome="begun") == begun + 2
        await trio.sleep(120)  # longer than the daemon waits for a claim
        offered(market)
        await trio.sleep(60)
        assert count("svcd_jobs_ahead_total", outcome="begun") == begun + 2


@pytest.mark.parametrize(
    ("record", "most"),
    [
        (OwnerRecord(), 0),
        (OwnerRecord(settled_jobs=4), 0),
        (OwnerRecord(settled_jobs=5), 800),
        (OwnerRecord(settled_jobs=50, unpaid_jobs=1, settled_jobs_since_unpaid=4), 0),
        (OwnerRecord(settled_jobs=50, unpaid_jobs=1, settled_jobs_since_unpaid=5), 800),
        (OwnerRecord(settled_jobs=50, unpaid_jobs=3, settled_jobs_since_unpaid=5), 200),
        (OwnerRecord(settled_jobs=50, unpaid_jobs=3, settled_jobs_since_unpaid=10), 400),
        (OwnerRecord(settled_jobs=50, unpaid_jobs=3, settled_jobs_since_unpaid=40), 800),
        (OwnerRecord(settled_jobs=50, unpaid_jobs=30, settled_jobs_since_unpaid=5), 0),
    ],
)
async def test_trust_is_earned_halved_and_earned_again(record: OwnerRecord, most: int) -> None:
    table = AheadTable(max_amount=800, max_in_flight=800, settled_jobs=5)
    assert max_amount_for(record, table) == most


async def test_minimal_payer_costs_only_a_few_jobs() -> None:
    """The owner settles as many jobs as the table requires, takes the largest free job that this allows, and
    repeats."""
    table = AheadTable(max_amount=1_000_000, max_in_flight=10**9, settled_jobs=5)
    record, paid, lost = OwnerRecord(), 0, 0
    for _ in range(1_000):
        while not max_amount_for(record, table) and paid < 100_000:
            record = attrs.evolve(
                record,
                settled_jobs=record.settled_jobs + 1,
                settled_jobs_since_unpaid=record.settled_jobs_since_unpaid + 1,
            )
            paid += 1
        most = max_amount_for(record, table)
        lost += most
        record = attrs.evolve(record, unpaid_jobs=record.unpaid_jobs + 1, settled_jobs_since_unpaid=0)
    assert lost < 3 * 1_000_000 + paid
