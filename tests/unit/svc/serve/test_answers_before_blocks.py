"""Answers before their blocks: returned immediately, marked as provisional, booked with the chain's values, and
never bought twice."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from svc.serve.ledger import SpendEntry
from svc.serve.settings import BudgetSettings, BuyingSettings, ServeSettings
from tests.unit.svc.fake_coordinator import Answer, failing, until
from tests.unit.svc.serve.market import GATEWAY, Caller, ServedMarket

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1_000}
MINE = {"idempotency-key": "one"}


@pytest.fixture
def early(market: ServedMarket) -> ServedMarket:
    """A market that reports every settle immediately. The chain has the settle when the test says so."""
    market.early, market.steps = "completed", {7: ("in_progress",)}
    return market


def chain_says(market: ServedMarket, status: str) -> None:
    for job in market.jobs.values():
        job.steps[:] = [status]


async def spent(caller: Caller) -> SpendEntry:
    (job,) = await caller.served.context.ledger.list_jobs_since(0)
    return job


async def until_booked(caller: Caller) -> SpendEntry:
    with anyio.fail_after(200):
        while (job := await spent(caller)).state in ("posting", "given"):  # noqa: ASYNC110 - no event reports it
            await anyio.sleep(1)
    return job


async def test_early_answer_reserves_the_amount_until_settled(early: ServedMarket, tmp_path: Path) -> None:
    async with early.served(tmp_path / "a") as caller:
        amount = int((await caller.post(CHAT, HELLO)).json["svc"]["amount"])
    settings = ServeSettings(budget=BudgetSettings(per_day=amount + amount // 2))
    async with early.served(tmp_path / "b", settings) as caller:
        heard = await caller.post(CHAT, HELLO)
        given, refused = await spent(caller), await caller.post(CHAT, HELLO)
        chain_says(early, "completed")
        booked = await until_booked(caller)
        again = await caller.post(CHAT, HELLO)
    told = heard.json["svc"]
    assert (told["provisional"], told["rests_on"], heard.headers["x-svc-provisional"]) == (True, "stored", "true")
    assert (given.state, given.cost, given.amount) == ("given", None, amount)
    assert (refused.status, refused.code) == (429, "insufficient_quota")
    assert (booked.state, str(booked.cost), again.status) == ("done", told["cost"], 200)
    assert int(told["cost"]) < amount // 2


async def test_with_final_answers_wait_for_the_chain(early: ServedMarket, tmp_path: Path) -> None:
    early.steps = {}
    async with early.served(tmp_path, ServeSettings(buying=BuyingSettings(final=True))) as caller:
        heard = await caller.post(CHAT, HELLO)
        booked = await spent(caller)
    assert "provisional" not in heard.json["svc"]
    assert (booked.state, early.posts[0].headers.get("prefer")) == ("done", None)


async def test_withdrawn_answer_costs_nothing_and_is_not_rebought(early: ServedMarket, tmp_path: Path) -> None:
    async with early.served(tmp_path) as caller:
        first = await caller.post(CHAT, HELLO, headers=MINE)
        meanwhile = await caller.post(CHAT, HELLO, headers=MINE)
        chain_says(early, "failed")
        booked = await until_booked(caller)
        later = await caller.post(CHAT, HELLO, headers=MINE)
    answers = [heard.json["choices"] for heard in (first, meanwhile, later)]
    assert answers[0] == answers[1] == answers[2]
    assert (booked.state, booked.cost, len(early.posts)) == ("refunded", 0, 1)
    assert [heard.json["svc"].get("provisional") for heard in (first, meanwhile, later)] == [True, True, None]
    assert later.json["svc"]["cost"] == "0"
    assert [said for said in caller.said if "was not settled (provider_fail); nothing was paid for it" in said]


async def test_unseen_withdrawn_answer_is_bought_again(early: ServedMarket, tmp_path: Path) -> None:
    async with early.served(tmp_path) as caller:
        with pytest.raises(ConnectionResetError):
            await caller.post(CHAT, HELLO, headers=MINE, breaks=True)
        chain_says(early, "failed")
        assert (await until_booked(caller)).state == "refunded"
        early.steps = {}
        assert (await caller.post(CHAT, HELLO, headers=MINE)).status == 200
    assert len(early.posts) == 2


async def test_differing_final_result_is_reported(early: ServedMarket, tmp_path: Path) -> None:
    async with early.served(tmp_path) as caller:
        await caller.post(CHAT, HELLO)
        (made,) = early.jobs.values()
        made.steps[:] = ["completed"]
        other = early._shown(made) | {"result_cid": "bafyother"}
        early.coordinator.tell(f"GET /v1/jobs/{made.id}", Answer(200, other))
        assert (await until_booked(caller)).state == "done"
    assert [said for said in caller.said if "the settled result differs from the provisional answer" in said]


@pytest.mark.parametrize(("status", "state"), [("completed", "done"), ("failed", "refunded")])
async def test_given_answer_is_booked_by_the_next_start(
    early: ServedMarket, tmp_path: Path, status: str, state: str
) -> None:
    async with early.served(tmp_path) as caller:
        first = await caller.post(CHAT, HELLO, headers=MINE)
        assert (await spent(caller)).state == "given"
    chain_says(early, status)
    async with early.served(tmp_path) as caller:
        assert (await until_booked(caller)).state == state
        again = await caller.post(CHAT, HELLO, headers=MINE)
    assert (again.json["choices"], len(early.posts)) == (first.json["choices"], 1)


async def test_stuck_early_answers_leave_room_for_others(early: ServedMarket, tmp_path: Path) -> None:
    async with early.served(tmp_path) as caller:
        context = caller.served.context
        context.confirmation_limit = anyio.CapacityLimiter(1)
        stuck = (await caller.post(CHAT, HELLO)).json["svc"]["job_id"]
        await caller.post(CHAT, {**HELLO, "max_tokens": 999})
        (other,) = set(early.jobs) - {stuck}
        early.jobs[other].steps[:] = ["completed"]
        await anyio.sleep(60)
        assert {job.job_id: job.state for job in await context.ledger.list_jobs_since(0)} == {
            stuck: "given",
            other: "done",
        }


async def test_early_answer_without_a_job_is_refunded_after_expiry(early: ServedMarket, tmp_path: Path) -> None:
    async with early.served(tmp_path) as caller:
        context, now = caller.served.context, caller.served.context.clock()
        job_id = (await caller.post(CHAT, HELLO)).json["svc"]["job_id"]
        for route in (f"GET /v1/jobs/{job_id}", f"GET /v1/jobs/{job_id}/progress"):
            early.coordinator.tell(route, failing(404, "not_found"))
        await anyio.sleep(60)
        assert (await spent(caller)).state == "given"
        context.clock = lambda: now + 4 * 86_400
        assert (await until_booked(caller)).state == "refunded"


async def test_result_that_does_not_open_waits_for_the_chains(early: ServedMarket, tmp_path: Path) -> None:
    kept = early._order

    def broken(asked: Any) -> Answer:
        answer = kept(asked)
        for made in early.jobs.values():
            route = f"GET {GATEWAY}/ipfs/{made.id[2:20]}"
            early.coordinator.tell(route, Answer(200, b"\x01" * 200), *early.coordinator.script[route])
        return answer

    early.coordinator.tell("POST /v1/jobs", broken)
    early.steps = {}
    async with early.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
        assert (heard.status, (await spent(caller)).state) == (200, "done")
    assert "provisional" not in heard.json["svc"]


async def test_post_refused_after_storing_costs_nothing(early: ServedMarket, tmp_path: Path) -> None:
    early.early = "InsufficientBalance"
    async with early.served(tmp_path) as caller:
        refused = await caller.post(CHAT, HELLO)
        booked = await spent(caller)
        assert caller.served.context.prices.load.state_of(7).excluded_until < 0
    assert (refused.status, refused.code, booked.state, booked.cost) == (429, "insufficient_quota", "unpaid", 0)


async def test_withdrawn_early_claim_counts_as_unclaimed(early: ServedMarket, tmp_path: Path) -> None:
    """The coordinator reported a claim before its block, and the claim reverted. The job is open again, so the
    caller's disconnect cancels it."""
    early.early, early.steps = "in_progress", {7: ("queued",)}
    gone = anyio.Event()
    async with early.served(tmp_path) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: caller.post(CHAT, HELLO, gone=gone))
        await until(lambda: bool(early.jobs))
        await anyio.sleep(3)
        (made,) = early.jobs.values()
        early.early = "queued"
        route = f"GET /v1/jobs/{made.id}/progress"
        early.coordinator.tell(route, Answer(200, early._progress(made)))
        gone.set()
        await anyio.sleep(30)
        early.coordinator.tell(route, failing(404, "not_found"))
        assert (await until_booked(caller)).state == "unpaid"
    assert early.coordinator.to(f"POST /v1/jobs/{made.id}/cancel")
