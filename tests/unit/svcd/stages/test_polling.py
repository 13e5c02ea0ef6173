"""How many jobs a poll requests, at which rates, and which of them are claimed."""

from collections.abc import Callable

import attrs
import httpx
import pytest
import trio

from svcd.backends.discount import AskRates
from svcd.backends.load import Load, SlotsProbe
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput
from tests.support.fakes.market import SETTLED, Market
from tests.support.fakes.market_answers import Script, answer, error, instead
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, count, model_for

MODEL = model_for("demo/text", {"text"})


def asked(market: Market) -> list[int]:
    return [int(query["free"]) for query in market.polls]


async def hold(_: ModelWork) -> WorkOutput:
    await trio.sleep(300)
    return WorkOutput("late", 1)


def post_many(market: Market, n: int) -> list[str]:
    return [market.post(market.container(market.envelope({"input": str(i)}).encode())) for i in range(n)]


async def test_free_is_the_slots_less_the_jobs_held(market: Market, start: Start) -> None:
    post_many(market, 3)
    async with start(models=(MODEL,), backend=Backend(hold)):
        await trio.sleep(10)
        assert asked(market)[0] == 4
        assert asked(market)[-1] == 1
        assert count("svcd_model_free", model="demo/text") == 1
        assert count("svcd_capacity_free") == 1


@pytest.mark.parametrize("task_cid", ["a\nb", "../../api/v0/shutdown", "x" * 200])
async def test_job_with_an_invalid_cid_is_not_claimed(task_cid: str, market: Market, start: Start) -> None:
    open_one, held = market.post(task_cid=task_cid), market.post(market.container(), task_cid=task_cid)
    market.claim(held)
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(held) == ("failed", "task_unresolved")
        assert running.entry(open_one) == ("", None)
    assert "fetch" not in market.calls


async def test_unsuitable_orders_do_not_block_suitable_ones(market: Market, start: Start) -> None:
    unsold = [market.post(market.container(), sla_secs="86400") for _ in range(6)]  # older, and leased repeatedly
    job = market.post(market.container())
    async with start(models=(MODEL,)) as running:
        assert (await running.end_of(job))[0] == "settled"
        assert asked(market)[:2] == [4, 8]
        for one in unsold:
            market.end(one, 5)
        await trio.sleep(5)
        assert asked(market)[-1] == 4


async def test_granted_capacity_limits_polls_and_is_raised_once(market: Market, start: Start) -> None:
    market.capacity = 2
    market.always["request_capacity"] = instead(answer(409, {"ok": False, "reason": "StaleOp"}))
    async with start(models=(MODEL,)):
        await trio.sleep(10)
        assert asked(market)[-1] == 2
        assert count("svcd_capacity_granted") == 2
        del market.always["request_capacity"]
        await trio.sleep(200)
        assert market.requested == [8]  # half of the full reputation; twice the slots
        assert asked(market)[-1] == 4


async def test_capacity_that_was_requested_is_used_within_seconds(market: Market, start: Start) -> None:
    market.capacity = 1
    async with start(models=(MODEL,)):
        await trio.sleep(10)
        assert asked(market)[-1] == 4


async def test_withheld_capacity_is_requested_again_only_if_needed(market: Market, start: Start) -> None:
    market.capacity = 2
    market.always["request_capacity"] = keeping(market)
    async with start(models=(MODEL,)):
        for reputation, requested in ((500, [8]), (600, [8]), (400, [8, 10])):
            market.reputation = reputation
            await trio.sleep(100)
            assert market.requested == requested


async def test_grant_that_own_settles_raise_is_used_at_once(market: Market, start: Start) -> None:
    market.capacity = 2
    market.always["request_capacity"] = keeping(market)
    async with start(models=(MODEL,)) as running:
        await trio.sleep(10)
        market.capacity = 3  # no look for a minute, except after a settle, which may raise the limit
        await trio.sleep(5)
        assert asked(market)[-1] == 2
        await running.end_of(market.post())
        await trio.sleep(2.5)
        assert asked(market)[-1] == 3


async def test_grant_that_a_failed_job_lowers_is_heeded_at_once(market: Market, start: Start) -> None:
    market.capacity = 4
    market.always["request_capacity"] = keeping(market)
    async with start(models=(MODEL,)) as running:
        await trio.sleep(10)
        market.capacity = 1
        assert (await running.end_of(market.post(market.container(b"no envelope"))))[0] == "failed"
        await trio.sleep(2.5)
        assert asked(market)[-1] == 1


@pytest.mark.parametrize(("granted", "a_second"), [(4, 0.1), (2, 1.0)])
async def test_grant_is_reread_after_settles_only_when_short(
    granted: int, a_second: float, market: Market, start: Start
) -> None:
    market.capacity = granted
    market.always["request_capacity"] = keeping(market)
    async with start(models=(MODEL,)) as running:
        await trio.sleep(10)
        read, began = market.calls.count("providers"), trio.current_time()
        jobs = post_many(market, 80)
        await running.until(lambda: all(market.jobs[job]["state"] == SETTLED for job in jobs))
        lasted = trio.current_time() - began
        assert market.calls.count("providers") - read <= lasted * a_second + 2


def keeping(market: Market) -> Script:
    """The request is accepted, but a ceiling leaves the grant unchanged."""

    async def script(perform: Callable[[], httpx.Response]) -> httpx.Response:
        granted, answered = market.capacity, perform()
        market.capacity = granted
        return answered

    return script


async def test_busy_backend_lowers_free(market: Market, start: Start) -> None:
    @attrs.frozen
    class Busy:
        async def read(self) -> float | None:
            return 0.5

    async with start(models=(MODEL,)) as running:
        one = running.ground.served_models["demo/text"]
        own = SlotsProbe(4, lambda: 0)
        running.ground.served_models["demo/text"] = attrs.evolve(one, load=Load("demo/text", Busy(), own))
        await trio.sleep(10)
        assert asked(market)[-1] == 2


async def test_three_faults_open_the_circuit_until_recovery(market: Market, start: Start) -> None:
    async def faulty(_: ModelWork) -> WorkOutput:
        raise WorkFailed("backend_exhausted", backend_fault=True)

    backend = Backend(faulty)
    jobs = post_many(market, 3)
    async with start(models=(MODEL,), backend=backend) as running:
        for job in jobs:
            await running.end_of(job)
        backend.up = False
        await trio.sleep(20)
        assert asked(market)[-1] == 0
        backend.act, backend.up = None, True
        await trio.sleep(60)
        assert asked(market)[-1] == 4


@pytest.mark.parametrize(
    "changed",
    [
        {"rate_in": "99"},
        {"rate_out": "199"},
        {"sla_secs": "3600"},  # not offered
        {"expires_at": "1800000003"},
    ],
)
async def test_job_that_is_not_worth_it_is_left_alone(changed: dict[str, str], market: Market, start: Start) -> None:
    job = market.post(**changed)
    async with start(models=(MODEL,)) as running:
        await trio.sleep(2)
        assert running.entry(job) == ("", None)
    assert market.polls[0]["min_rate_in"] == "100"
    assert market.polls[0]["min_rate_out"] == "200"


async def test_idle_provider_discounts_its_ask(market: Market, start: Start) -> None:
    generous = model_for("demo/text", {"text"}, discount_percent=20)
    async with start(models=(generous,)) as running:
        await trio.sleep(700)
        assert market.polls[-1]["min_rate_in"] == "80"
        job = market.post(rate_in="80", rate_out="160")
        assert await running.end_of(job) == ("settled", None)


async def test_window_too_short_for_recent_runs_is_not_claimed(market: Market, start: Start) -> None:
    tight = model_for("demo/text", {"text"}, asks={60: AskRates(0, 1)}, margin_seconds=5.0)
    async with start(models=(tight,)) as running:
        running.daemon.timings.record_run("demo/text", 40)
        running.daemon.timings.record_relay(8)
        job = market.post(sla_secs="60")
        await trio.sleep(20)
        assert running.entry(job) == ("", None)


@pytest.mark.parametrize(("reason", "least"), [("PaymentRefused", 30), ("UnknownJob", 30), ("AtCapacity", 10)])
async def test_refused_claim_is_tried_again_after_a_while(
    reason: str, least: int, market: Market, start: Start
) -> None:
    """The cause may pass, such as a paused token or a reorg between post and claim."""
    refused_at: list[float] = []

    async def refuse(_: Callable[[], httpx.Response]) -> httpx.Response:
        refused_at.append(trio.current_time())
        return answer(409, {"ok": False, "reason": reason})

    job = market.post()
    market.scripts["claim"] += [refuse, refuse]
    async with start(models=(MODEL,)) as running:
        await running.until(lambda: running.entry(job)[0] == "settled")
    assert refused_at[1] - refused_at[0] >= least
    assert market.calls.count("claim") == 3


async def test_unopenable_job_is_not_claimed(market: Market, start: Start) -> None:
    designated = market.post()
    async with start(models=(MODEL,), box=None) as running:
        await trio.sleep(10)
        assert running.entry(designated) == ("", None)


async def test_escrow_that_gave_no_key_is_left_alone_for_five_minutes(market: Market, start: Start) -> None:
    def open_job(text: str) -> str:
        envelope = market.envelope({"input": text}).encode()
        return market.post(market.container(envelope, market.escrow.public), designated="0")

    market.scripts["release"].append(instead(error(403, "escrow_unavailable")))
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(open_job("one")) == ("failed", "escrow_unavailable")
        began, second = trio.current_time(), open_job("two")
        assert await running.end_of(market.post()) == ("settled", None)  # designated jobs continue
        assert await running.end_of(second) == ("settled", None)
        assert trio.current_time() - began > 280


async def test_rare_polls_are_no_silence(market: Market, start: Start) -> None:
    rare = model_for("demo/text", {"text"}, poll_seconds=200.0)
    async with start(models=(rare,)) as running:
        for _ in range(20):
            await trio.sleep(61)
            assert running.daemon.health.problem is None


async def test_poll_that_fails_is_no_end_and_silence_makes_unhealthy(market: Market, start: Start) -> None:
    market.always["poll"] = instead(error(503, "not_ready", "not_ready", retryable=True))
    async with start(models=(MODEL,)) as running:
        await trio.sleep(30)
        assert running.daemon.health.problem is None
        await trio.sleep(40)
        assert running.daemon.health.problem == "no poll was answered lately: demo/text"
        del market.always["poll"]
        job = market.post()
        assert await running.end_of(job) == ("settled", None)
        assert running.daemon.health.problem is None


def held(market: Market, longest: float = 60.0) -> None:
    """The coordinator holds polls for as long as they request. A proxy cuts off polls that take longer than
    `longest`."""

    async def hold_poll(perform: Callable[[], httpx.Response]) -> httpx.Response:
        answer = perform()
        wait = float(market.polls[-1].get("wait", "0"))
        with trio.move_on_after(min(wait, longest)):
            while not market.jobs:  # noqa: ASYNC110 - on a virtual clock
                await trio.sleep(0.1)
        if wait > longest and not market.jobs:
            return httpx.Response(504)
        return perform() if market.jobs else answer

    market.always["poll"] = hold_poll


async def test_held_poll_is_followed_immediately(market: Market, start: Start) -> None:
    held(market)
    async with start(models=(MODEL,)) as running:
        await trio.sleep(85)
        assert [query["wait"] for query in market.polls] == ["20"] * 5
        began = trio.current_time()
        (job,) = post_many(market, 1)
        while job not in {entry for entry in market.jobs if market.jobs[entry]["state"] != 0}:  # noqa: ASYNC110
            await trio.sleep(0.05)
        assert trio.current_time() - began < 1
        assert await running.end_of(job)


async def test_coordinator_without_held_polls_is_polled_normally(market: Market, start: Start) -> None:
    async with start(models=(MODEL,)):
        await trio.sleep(21)
        assert 10 <= len(market.polls) <= 12


async def test_poll_without_room_does_not_wait(market: Market, start: Start) -> None:
    post_many(market, 4)
    async with start(models=(MODEL,), backend=Backend(hold)):
        await trio.sleep(10)
        assert asked(market)[-1] == 0
        assert "wait" not in market.polls[-1]


async def test_polls_are_shorter_where_a_proxy_cuts_off_long_ones(market: Market, start: Start) -> None:
    held(market, longest=12.0)
    async with start(models=(MODEL,)):
        await trio.sleep(60)
        assert [query["wait"] for query in market.polls][:4] == ["20", "6", "6", "6"]
