"""Claims: whether a rejection concerns the job or the provider, how an unknown outcome ends, and what a node says."""

from collections.abc import Callable

import httpx
import pytest
import trio

from svcd.base.errors import Unavailable
from svcd.coordinator.chain import ChainReader, Claimed, ClaimStatus, Contradicted, NotClaimed
from svcd.journal.book_row import Job
from tests.support.fakes.market import OPEN, START, Market
from tests.support.fakes.market_answers import Script, answer, behind, error, instead, lost
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import model_for

MODEL = model_for("demo/text", {"text"})


def refused(reason: str) -> Script:
    return instead(answer(409, {"ok": False, "reason": reason}))


@pytest.mark.parametrize(
    "refusal",
    [
        refused("AtCapacity"),
        refused("ModelNotAllowed"),
        instead(error(403, None, "invalid_op_signature")),
        instead(answer(201, {"tx_hash": "0xab", "status": "reverted", "block_number": "1"})),
    ],
    ids=["ours", "the model's", "the wallet's", "reverted"],
)
async def test_claim_refused_without_fault_is_retried(refusal: Script, market: Market, start: Start) -> None:
    market.scripts["claim"].append(refusal)
    job = market.post()
    async with start(models=(MODEL,)) as running:
        await trio.sleep(60)
        assert running.ground.slots.held_slots == 0
        assert running.entry(job)[0] == "settled"
    assert market.calls.count("claim") == 2


@pytest.mark.parametrize(
    "refusal", [refused("AtCapacity"), instead(error(403, None, "invalid_op_signature"))], ids=["chain", "coordinator"]
)
async def test_claims_refused_because_of_us_are_not_hurried(refusal: Script, market: Market, start: Start) -> None:
    market.always["claim"] = refusal
    market.post()
    async with start(models=(MODEL,)):
        await trio.sleep(60)
    assert len(market.polls) > 25
    assert market.calls.count("claim") <= 6


async def test_refused_resend_of_a_mined_claim_is_ours(market: Market, start: Start) -> None:
    market.scripts["claim"].append(lost())
    market.scripts["job"] += [behind(state=OPEN, provider_id="0")] * 2
    job = market.post()
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    assert market.calls.count("claim") == 2


async def test_claim_of_another_provider_is_not_ours(market: Market, start: Start) -> None:
    job = market.post(designated="0")

    async def taken(_: object) -> httpx.Response:
        market.claim(job)
        market.jobs[job] |= {"provider_id": str(market.provider_id + 1)}
        return answer(409, {"ok": False, "reason": "NotOpen"})

    market.always["claim"] = taken
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("not_claimed", "NotOpen")
        await trio.sleep(60)
    assert market.calls.count("fetch") == 0


async def test_window_counts_from_before_the_claim_was_sent(market: Market, start: Start) -> None:
    async def slow(perform: Callable[[], httpx.Response]) -> httpx.Response:
        mined = perform()
        await trio.sleep(12)  # short enough to leave the margin unchanged
        return mined

    market.scripts["claim"].append(slow)
    job = market.post()
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    row = market.jobs[job]
    assert (
        running.backend.ran[0].deadline <= int(row["claimed_at"]) - START + int(row["sla_secs"]) - MODEL.margin_seconds
    )


async def test_slot_is_freed_after_an_unexpected_failure(market: Market, start: Start) -> None:
    async def faulty(_: object) -> httpx.Response:
        raise RuntimeError("a fault")

    market.scripts["claim"].append(faulty)
    market.post()
    async with start(models=(model_for("demo/text", {"text"}, slots=1),)) as running:
        await running.until(lambda: "claim" in market.calls)
        after = market.post()
        await running.until(lambda: running.entry(after)[0] == "settled")


async def test_no_slot_is_lost_when_stopped_with_busy_claimers(market: Market, start: Start) -> None:
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


async def test_settled_job_in_a_lagging_book_is_not_reclaimed(market: Market, start: Start) -> None:
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


Says = Callable[[int], ClaimStatus]


def away(_: int) -> ClaimStatus:
    raise Unavailable("the node: eth_call: ConnectError")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[[Says], list[Job]]:
    """Configure a node. Its n-th answer is `say(n)`. Return the list of jobs that the daemon asked about."""

    def says(say: Says) -> list[Job]:
        asked: list[Job] = []

        async def claim_status(_: ChainReader, job: Job) -> ClaimStatus:
            asked.append(job)
            return say(len(asked))

        async def chain_id(chain: ChainReader) -> int:
            return chain.address_book.chain_id

        monkeypatch.setattr(ChainReader, "claim_status", claim_status)
        monkeypatch.setattr(ChainReader, "chain_id", chain_id)
        return asked

    return says


async def test_job_runs_once_a_recovered_node_shows_the_claim(
    node: Callable[[Says], list[Job]], market: Market, start: Start
) -> None:
    def late(n: int) -> ClaimStatus:
        return away(n) if n < 3 else NotClaimed("state 0, provider 0") if n < 5 else Claimed()

    asked, job = node(late), market.post()
    async with start(models=(MODEL,), rpc_url="http://node.example") as running:
        assert await running.end_of(job) == ("settled", None)
        assert len(running.backend.ran) == 1
    assert len(asked) == 5


@pytest.mark.parametrize(
    ("say", "reason", "questions"),
    [
        (away, "deadline_wait", 100),
        (lambda _: NotClaimed("state 0, provider 0"), "not_claimed", 100),
        (lambda _: Contradicted("rate_in is 1, and not 2"), "unservable", 1),
    ],
    ids=["away", "not claimed", "other terms"],
)
async def test_job_not_on_the_chain_is_never_run(  # noqa: PLR0917 - fixtures come as arguments
    say: Says, reason: str, questions: int, node: Callable[[Says], list[Job]], market: Market, start: Start
) -> None:
    asked, job = node(say), market.post()
    async with start(models=(MODEL,), rpc_url="http://node.example") as running:
        began = trio.current_time()
        assert await running.end_of(job) == ("failed", reason)
        assert trio.current_time() - began < 300  # before the owner is refunded
        assert running.backend.ran == []
    assert len(asked) >= questions
    assert asked[0].job_id.hex() == job[2:]


async def test_claim_is_not_awaited_beyond_the_time_to_fail(
    monkeypatch: pytest.MonkeyPatch, node: Callable[[Says], list[Job]], market: Market, start: Start
) -> None:
    node(away)

    async def slow(_: ChainReader, job: Job) -> ClaimStatus:
        await trio.sleep(29)
        raise Unavailable("the node does not answer in time")

    monkeypatch.setattr(ChainReader, "claim_status", slow)
    job = market.post()
    async with start(models=(MODEL,), rpc_url="http://node.example") as running:
        began = trio.current_time()
        assert await running.end_of(job) == ("failed", "deadline_wait")
        assert trio.current_time() - began < 280
