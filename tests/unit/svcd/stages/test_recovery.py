"""Jobs of a killed daemon: after a restart the chain's state is read, and each job ends as it should."""

from collections.abc import Callable

import httpx
import pytest
import trio

from common.canonical_json import canonical
from common.daemon.process import Fatal
from svcd.journal.book_row import Job
from svcd.journal.entries import JobEntry, JournalState
from svcd.journal.held_job import CLAIM_LIFETIME_S
from svcd.journal.work import ModelWork, WorkOutput
from svcd.stages.reconciler import Verdict, decide_verdict
from tests.support.fakes.market import START, Market
from tests.support.fakes.market_answers import Script, answer, instead, unreached
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, count

OURS = 7


def _entry(state: JournalState, row: dict[str, object]) -> JobEntry:
    return JobEntry(Job.read(row), "demo/text", state, float(START), 10, 100, None, None)


@pytest.mark.parametrize(
    ("state", "chain", "after", "expected"),
    [
        ("claiming", {"state": 0}, 0, "wait"),  # the claim may still be mined
        ("claiming", {"state": 0}, CLAIM_LIFETIME_S, "not_claimed"),
        ("claiming", {"state": 1}, 10, "work"),  # the claim was mined, and its answer was lost
        ("claiming", {"state": 1, "provider_id": "8"}, 10, "not_claimed"),
        ("claiming", None, CLAIM_LIFETIME_S, "not_claimed"),
        ("claimed", {"state": 0}, 0, "wait"),  # a reorg removed the claim, which may be mined again
        ("claimed", {"state": 0}, CLAIM_LIFETIME_S, "claim_expired"),
        ("claimed", {"state": 1}, 599, "work"),
        ("claimed", {"state": 1}, 600, "claim_expired"),
        ("sealed", {"state": 1}, 599, "settle"),
        ("sealed", {"state": 1}, 600, "claim_expired"),
        ("sealed", {"state": 0}, 0, "settle"),  # the settler claims the job again
        ("sealed", {"state": 0}, 3599, "settle"),
        ("sealed", {"state": 0}, 3600, "claim_expired"),  # the job has expired as well
        ("sealed", None, 3599, "claim_expired"),
        ("sealed", None, 0, "wait"),
        ("claimed", {"state": 0}, CLAIM_LIFETIME_S - 1, "wait"),
        ("sealed", {"state": 2}, 10, "settled"),  # the settle's answer was lost
        ("sealed", {"state": 3}, 10, "claim_expired"),
        ("failing", {"state": 1}, 10, "fail"),
        ("failing", {"state": 1}, 10_000, "fail"),
        ("failing", {"state": 2}, 10, "settled"),
        ("failing", {"state": 3}, 10, "failed"),
    ],
)
def test_chain_decides_and_the_journal_adds_what_it_cannot_know(
    state: JournalState, chain: dict[str, object] | None, after: float, expected: Verdict
) -> None:
    market = Market(lambda: START)
    row = market.jobs[market.post()]
    on_chain = None
    if chain is not None:
        on_chain = Job.read({**row, "provider_id": str(OURS), "claimed_at": str(START), **chain})
    assert decide_verdict(_entry(state, row), on_chain, OURS, START + after) == expected


def hang(market: Market, name: str, reached: trio.Event, *, before: bool) -> None:
    """Let a call hang after the request arrived. `before`: hang without executing the request."""

    async def script(perform: Callable[[], httpx.Response]) -> httpx.Response:
        if not before:
            perform()
        reached.set()
        await trio.sleep_forever()
        raise AssertionError

    market.always[name] = script


@pytest.mark.parametrize(
    ("call", "runs"), [(("claim", False), 1), (("fetch", True), 1), (("settle", True), 0), (("settle", False), 0)]
)
async def test_job_of_a_killed_daemon_is_settled_once_by_the_next(
    call: tuple[str, bool], runs: int, market: Market, start: Start
) -> None:
    reached = trio.Event()
    name, before = call
    hang(market, name, reached, before=before)
    job = market.post()
    async with start():
        await reached.wait()
    del market.always[name]
    second = Backend()
    async with start(backend=second) as running:
        assert await running.end_of(job) == ("settled", None)
    assert len(second.ran) == runs
    assert market.jobs[job]["state"] == 2


@pytest.mark.parametrize("journal_kept", [True, False])
async def test_claimed_job_with_swapped_terms_is_failed_unrun(journal_kept: bool, market: Market, start: Start) -> None:
    """The claim was signed for an offer. On the chain, this provider has claimed a different order with the same id."""
    reached = trio.Event()
    job = market.post()
    if journal_kept:
        hang(market, "claim", reached, before=False)
        async with start():
            await reached.wait()
        del market.always["claim"]
    else:  # the claim was rejected at first, and is mined later
        market.scripts["claim"].append(instead(answer(409, {"ok": False, "reason": "PaymentRefused"})))
        async with start() as running:
            await running.until(lambda: "claim" in market.calls)
            await trio.sleep(1)
        market.claim(job)
    market.jobs[job] |= {"rate_in": "0", "rate_out": "0"}
    second = Backend()
    async with start(backend=second) as running:
        await running.until(lambda: market.jobs[job]["state"] == 3)
        await trio.sleep(1)
        assert await running.end_of(job) == ("failed", "unservable")
    assert second.ran == []
    assert market.jobs[job]["ended_because"] == 3


@pytest.mark.parametrize("before", [True, False])
async def test_large_result_of_a_killed_daemon_is_settled(before: bool, market: Market, start: Start) -> None:
    async def large(_: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 16_000_000, 1)

    reached = trio.Event()
    hang(market, "files", reached, before=before)
    job = market.post()
    async with start(backend=Backend(large)):
        await reached.wait()
    del market.always["files"]
    second = Backend()
    async with start(backend=second) as running:
        assert await running.end_of(job) == ("settled", None)
    assert second.ran == []
    assert len(market.results[job]) > 16_000_000


async def test_killed_run_is_repeated_within_its_sla(market: Market, start: Start) -> None:
    reached = trio.Event()

    async def endless(_: ModelWork) -> WorkOutput:
        reached.set()
        await trio.sleep_forever()
        raise AssertionError

    job = market.post()
    async with start(backend=Backend(endless)):
        await reached.wait()
    await trio.sleep(100)
    second = Backend()
    async with start(backend=second) as running:
        assert await running.end_of(job) == ("settled", None)
    (work,) = second.ran
    assert work.deadline <= 600 - 30  # counted from the claim at clock time 0, within a second


@pytest.mark.parametrize("stage", ["fetch", "settle", "fail", "files"])
async def test_network_loss_at_any_stage_costs_no_job(stage: str, market: Market, start: Start) -> None:
    async def lose(perform: Callable[[], httpx.Response]) -> httpx.Response:
        market.always = Nowhere()
        raise httpx.ReadError("as the test wants it")

    async def act(work: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 16_000_000 if stage == "files" else "y", 1)

    market.always[stage] = lose
    plaintext = canonical({"v": 2}) if stage == "fail" else None
    job = market.post(market.container(plaintext))
    async with start(backend=Backend(act)) as running:
        await running.until(lambda: isinstance(market.always, Nowhere))
        await trio.sleep(200)
        market.always = {}
        expected = ("failed", "malformed_envelope") if stage == "fail" else ("settled", None)
        assert await running.end_of(job) == expected
    assert len(running.backend.ran) == (stage != "fail")


class Nowhere(dict[str, Script]):
    """Fails every request."""

    def get(self, _: object, _default: object = None) -> Script:
        return unreached()


async def test_claim_mined_late_is_taken_on(market: Market, start: Start) -> None:
    market.always["claim"] = unreached()
    job = market.post(expires_at=str(START + 6))  # offered once
    async with start() as running:
        await running.until(lambda: running.entry(job)[0] == "claiming" and running.ground.slots.held_slots == 0)
        market.claim(job)
        assert await running.end_of(job) == ("settled", None)


async def test_started_fail_is_sent_after_a_restart(market: Market, start: Start) -> None:
    reached = trio.Event()
    hang(market, "fail", reached, before=True)
    job = market.post(market.container(canonical({"v": 2})))
    async with start():
        await reached.wait()
    del market.always["fail"]
    async with start() as running:
        assert await running.end_of(job) == ("failed", "malformed_envelope")
    assert market.jobs[job]["ended_because"] == 3


async def test_lost_journal_costs_no_job_the_chain_still_names_them(market: Market, start: Start) -> None:
    job = market.post()
    market.claim(job)
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)


async def test_job_thought_unclaimed_is_taken_on_if_claimed(market: Market, start: Start) -> None:
    market.scripts["claim"].append(instead(answer(409, {"ok": False, "reason": "PaymentRefused"})))
    job = market.post()
    async with start() as running:
        assert await running.end_of(job) == ("not_claimed", "PaymentRefused")
        market.claim(job)
        await running.until(lambda: running.entry(job)[0] != "not_claimed")
        assert await running.end_of(job) == ("settled", None)


async def test_job_that_ends_during_a_look_up_counts_once(market: Market, start: Start) -> None:
    """The journal was read before the job ended."""

    async def slowly(perform: Callable[[], httpx.Response]) -> httpx.Response:
        await trio.sleep(20)
        return perform()

    async def half_a_minute(work: ModelWork) -> WorkOutput:
        await trio.sleep(35)
        return WorkOutput(work.input, 1)

    market.always["claim"] = unreached()
    unanswered = market.post(expires_at=str(START + 6))
    async with start(backend=Backend(half_a_minute)) as running:
        await running.until(lambda: running.entry(unanswered)[0] == "claiming" and not running.ground.slots.held_slots)
        del market.always["claim"]
        market.always["job"] = slowly
        settled = count("svcd_jobs_settled_total")
        job = market.post()
        assert await running.end_of(job) == ("settled", None)
        await trio.sleep(60)
        assert count("svcd_jobs_settled_total") == settled + 1


async def test_ended_job_is_not_revived_by_a_lagging_index(market: Market, start: Start) -> None:
    job = market.post()
    async with start() as running:
        await running.end_of(job)
        market.claim(job)
        await trio.sleep(100)
    assert len(running.backend.ran) == 1


async def test_job_given_up_by_an_earlier_run_is_not_claimed_again(market: Market, start: Start) -> None:
    async def broken(_: ModelWork) -> WorkOutput:
        raise ZeroDivisionError

    job = market.post()
    async with start(backend=Backend(broken)) as running:
        await running.end_of(job)
    market.jobs[job] |= {"state": 0, "provider_id": "0"}  # a reorg removed the claim
    async with start() as running:
        await trio.sleep(100)
        assert running.backend.ran == []
    assert market.calls.count("claim") == 1


async def test_two_daemons_do_not_share_a_state_directory(market: Market, start: Start) -> None:
    async with start():
        with pytest.raises(Fatal, match="another svcd runs"):
            async with start():
                pass


async def test_nonsense_of_a_starting_coordinator_is_waited_out(market: Market, start: Start) -> None:
    for route in ("chain", "nonce", "session", "models"):
        market.scripts[route] = [instead(httpx.Response(200, content=body)) for body in (b"<html>", b"[]", b"{}")]
    job = market.post()
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)
