"""Purchases after failures: nothing is bought twice, no paid job is given up, and no provider is blamed for a local
fault. Orders belong to the trace of the request that they answer."""

import gc
import itertools
import weakref
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from svc.serve.attempts import OpenPurchase
from svc.serve.purchases import AnswerPurchases
from svc.serve.settings import BudgetSettings, BuyingSettings, ServeSettings
from tests.unit.svc.fake_coordinator import FEE_BPS, Answer, Asked, Dropped, failing, provider, quoting, until
from tests.unit.svc.serve.market import SETTLED, Heard, ServedMarket, candidate, full_disk

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}
NEVER = ("queued",)
FAILS = ("queued", "in_progress", "failed")
MINE = {"idempotency-key": "one"}


def buying(**changed: Any) -> ServeSettings:
    return ServeSettings(buying=BuyingSettings(**changed))


def with_room(market: ServedMarket, **capacities: int) -> None:
    for name, capacity in capacities.items():
        number = name.removeprefix("p")
        shown = provider(provider_id=number, capacity=str(capacity))
        market.coordinator.tell(f"GET /evm/providers/{number}", Answer(200, shown))


# --- several providers ----------------------------------------------------------------------------------------


async def test_concurrent_requests_use_all_free_providers(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates = [candidate(7, 100), candidate(8, 120), candidate(9, 150), candidate(10, 10_000)]
    with_room(market, p7=24, p8=18, p9=30, p10=1_000)
    heard: list[int] = []
    settings = ServeSettings(budget=BudgetSettings(per_day=10**9), tabs="off")

    async def ask() -> None:
        heard.append((await caller.post(CHAT, {**HELLO, "max_tokens": 5})).status)

    async with market.served(tmp_path, settings) as caller, anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(ask)
    given = [sum(job.provider == number for job in market.jobs.values()) for number in (7, 8, 9, 10)]
    assert heard == [200] * 60
    assert given == [24, 18, 18, 0]  # no provider beyond its room, and none at a hundred times the price
    assert (market.probes(), len(market.coordinator.to("POST /v1/jobs"))) == (1, 62)  # one probe for all requests


async def test_unusually_late_claim_moves_on_before_the_maximum(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates = [candidate(7), candidate(8)]
    with_room(market, p7=5, p8=5)
    async with market.served(tmp_path, buying(claim_seconds=300)) as caller:
        await caller.post(CHAT, HELLO)  # claimed at the second look
        market.steps, began = {7: NEVER}, anyio.current_time()
        heard = await caller.post(CHAT, HELLO)
        waited = anyio.current_time() - began
    assert heard.json["svc"]["provider"] == 8
    assert waited < 15


async def test_job_is_not_moved_to_a_provider_that_failed(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates = [candidate(7), candidate(8)]
    market.steps = {7: FAILS, 8: ("queued",) * 40 + SETTLED}
    async with market.served(tmp_path, buying(claim_seconds=5)) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert (heard.status, heard.json["svc"]["provider"], len(market.jobs)) == (200, 8, 2)


async def test_last_attempt_is_not_cancelled(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates, market.steps = [candidate(7), candidate(8)], {7: ("queued",) * 40 + SETTLED}
    async with market.served(tmp_path, buying(claim_seconds=5, max_attempts=1)) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert (heard.status, len(market.jobs)) == (200, 1)


async def test_provider_is_not_passed_over_because_a_caller_left(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates, market.steps, gone = [candidate(7), candidate(8)], {7: NEVER}, anyio.Event()
    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: caller.post(CHAT, HELLO, gone=gone))
            await until(lambda: bool(market.jobs))
            gone.set()
        await anyio.sleep(10)
        market.steps = {}
        heard = await caller.post(CHAT, HELLO)
    assert heard.json["svc"]["provider"] == 7


async def test_overloaded_coordinator_is_retried_later(market: ServedMarket, tmp_path: Path) -> None:
    kept, at = market._order, []

    def first_busy(asked: Asked) -> Answer:
        if "auth_sig" not in asked.body:
            return kept(asked)
        at.append(asked.at)
        return failing(503, "relay_unavailable", retryable=True) if len(at) == 1 else kept(asked)

    market.coordinator.tell("POST /v1/jobs", first_busy)
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
        states = [job.state for job in await caller.served.context.ledger.list_jobs_since(0)]
    assert (heard.status, states) == (200, ["unpaid", "done"])
    assert at[1] - at[0] >= 1


# --- money ----------------------------------------------------------------------------------------------------


async def test_requests_at_the_same_time_cannot_pass_a_budget_together(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, asked = {7: ("queued",) * 8 + SETTLED}, {**HELLO, "max_tokens": 1_000}
    async with market.served(tmp_path / "a") as caller:
        amount = int((await caller.post(CHAT, asked)).json["svc"]["amount"])
    market.jobs.clear()
    heard: list[Heard] = []

    async def ask() -> None:
        heard.append(await caller.post(CHAT, asked))

    settings = ServeSettings(budget=BudgetSettings(per_day=3 * amount + amount // 2))
    async with market.served(tmp_path / "b", settings) as caller:
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(ask)
        assert sorted(answer.status for answer in heard) == [200] * 3 + [429] * 9
        assert len(market.jobs) == 3
        assert (await caller.post(CHAT, asked)).status == 200  # the unused part of the three reservations is free again


async def test_failed_job_frees_its_whole_reservation(market: ServedMarket, tmp_path: Path) -> None:
    asked = {**HELLO, "max_tokens": 1_000}
    async with market.served(tmp_path / "a") as caller:
        amount = int((await caller.post(CHAT, asked)).json["svc"]["amount"])
    market.steps = {7: FAILS}
    async with market.served(tmp_path / "b", ServeSettings(budget=BudgetSettings(per_day=amount))) as caller:
        failed = await caller.post(CHAT, asked)
        market.steps = {}
        assert (failed.status, (await caller.post(CHAT, asked)).status) == (502, 200)


async def test_lowered_charges_are_learned_and_paid(market: ServedMarket, tmp_path: Path) -> None:
    kept = market._order

    def cheaper(asked: Asked) -> Answer:
        now = quoting(gas_fee=5)
        if "c" not in asked.body:
            return kept(asked)
        if "auth_sig" not in asked.body:
            return now(asked)
        quoted = quoting(gas_fee=5, status=409)(asked)
        return kept(asked) if asked.body["amount"] == quoted.body["quote"]["amount"] else quoted  # type: ignore[index]

    async with market.served(tmp_path) as caller:
        before = await caller.post(CHAT, HELLO)
        market.coordinator.tell("POST /v1/jobs", cheaper)
        after = await caller.post(CHAT, HELLO)
        (_, spent) = await caller.served.context.ledger.list_jobs_since(0)
        posts = len(market.posts)
        await caller.post(CHAT, HELLO)
    told, earlier = after.json["svc"], before.json["svc"]
    assert int(earlier["cost"]) - int(told["cost"]) == 2_000 - 5
    assert (int(told["amount"]), spent.amount, spent.cost) == (int(earlier["amount"]) - 1_995,) * 2 + (
        int(told["cost"]),
    )
    assert len(market.posts) - posts == 1  # at the new price
    assert FEE_BPS


async def test_lost_post_is_not_given_up_during_an_outage(market: ServedMarket, tmp_path: Path) -> None:
    """The job is posted, its answer is lost, and the coordinator is unreachable for ten minutes. In that time the
    job is paid."""
    kept, away = market._order, []

    def lost(asked: Asked) -> Answer:
        if "auth_sig" not in asked.body:
            return kept(asked)
        kept(asked)
        route = f"GET /v1/jobs/{asked.body['job_id']}"
        shown = market.coordinator.script[route]
        away.append((route, shown))
        market.coordinator.tell(route, Dropped())
        return failing(504, "receipt_timeout", "0x" + "ab" * 32)

    heard: list[Heard] = []

    async def ask() -> None:
        heard.append(await caller.post(CHAT, HELLO, headers=MINE))

    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            market.coordinator.tell("POST /v1/jobs", lost)
            tasks.start_soon(ask)
            await until(lambda: bool(away))
            await anyio.sleep(600)
            assert heard == []
            ((route, shown),) = away
            market.coordinator.tell(route, *shown)
        states = [job.state for job in await caller.served.context.ledger.list_jobs_since(0)]
    assert (heard[0].status, len(market.jobs), states) == (200, 1, ["done"])


# --- repetition -----------------------------------------------------------------------------------------------


async def test_idempotency_key_of_another_request_reads_nothing(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        await caller.post(CHAT, HELLO, headers=MINE)
        reads = [route for route in market.coordinator.routes() if "ipfs" in route]
        other = await caller.post(CHAT, {**HELLO, "seed": 1}, headers=MINE)
        await anyio.sleep(5)
    assert other.code == "idempotency_key_reused"
    assert [route for route in market.coordinator.routes() if "ipfs" in route] == reads


async def test_key_of_a_purchase_that_just_ends_buys_nothing(market: ServedMarket, tmp_path: Path) -> None:
    """The row still says "running", but no task follows the purchase, so it may be paid."""
    async with market.served(tmp_path) as caller:
        first = await caller.post(CHAT, HELLO, headers=MINE)
        ledger = caller.served.context.ledger
        purchase = await ledger.find_by_idempotency_key("default", "one")
        assert purchase is not None
        await ledger.record_purchase_end(purchase.id, "running")
        again = await caller.post(CHAT, HELLO, headers=MINE)
    assert (first.status, again.status, again.headers["x-should-retry"]) == (200, 409, "true")
    assert len(market.posts) == 1


async def test_unsent_answer_is_dropped_and_read_again(
    market: ServedMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[OpenPurchase]] = []
    remember = AnswerPurchases._add_open

    def noted(self: AnswerPurchases, purchase: OpenPurchase) -> None:
        seen.append(weakref.ref(purchase))
        remember(self, purchase)

    monkeypatch.setattr(AnswerPurchases, "_add_open", noted)
    async with market.served(tmp_path) as caller:
        with pytest.raises(ConnectionResetError):
            await caller.post(CHAT, HELLO, breaks=True)
        gc.collect()
        kept = [purchase() for purchase in seen if purchase() is not None]
        again = await caller.post(CHAT, HELLO)
    assert (kept, again.status, len(market.posts)) == ([], 200, 1)


async def test_answer_bought_on_a_full_disk_waits_for_room(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, heard = {7: ("queued",) * 4 + SETTLED}, []

    async def ask() -> None:
        heard.append(await caller.post(CHAT, HELLO))

    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until(lambda: bool(market.jobs))
            with full_disk():
                refused = await caller.post(CHAT, {**HELLO, "max_tokens": 5})
                await anyio.sleep(60)
                assert heard == []
        jobs = await caller.served.context.ledger.list_jobs_since(0)
    assert (refused.status, refused.code, heard[0].status) == (503, "storage_failed", 200)
    assert [job.state for job in jobs] == ["done"]


async def test_streamed_answer_read_again_keeps_its_job_id(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        whole = await caller.post(CHAT, HELLO, headers=MINE)
        streamed = await caller.post(CHAT, {**HELLO, "stream": True}, headers=MINE)
    assert {event["id"] for event in streamed.events} == {whole.json["id"]}
    assert streamed.headers["x-svc-job-id"] == whole.json["svc"]["job_id"]


async def test_waiting_polls_less_often_without_events(market: ServedMarket, tmp_path: Path) -> None:
    market.steps = {7: ("queued",) * 3 + ("in_progress",) * 16 + ("completed",)}
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
    (job,) = market.jobs
    looks = [asked.at for asked in market.coordinator.to(f"GET /v1/jobs/{job}")]
    pauses = [later - sooner for sooner, later in itertools.pairwise(looks)]
    assert heard.status == 200
    assert pauses[0] == pytest.approx(0.25)
    assert pauses[:19] == sorted(pauses[:19])
    assert max(pauses) <= 5
    assert len(market.coordinator.to(f"GET /v1/jobs/{job}/events")) == 1  # a 404 is not retried


TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
CONTEXT: Final = f"00-{TRACE}-00f067aa0ba902b7-01"
GREETING: Final = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}


async def test_order_continues_the_trace_of_the_caller(
    market: ServedMarket, tmp_path: Path, made_spans: InMemorySpanExporter
) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post("/v1/chat/completions", GREETING, headers={"traceparent": CONTEXT})
    assert heard.status == 200
    (span,) = made_spans.get_finished_spans()
    assert (span.name, f"{span.context.trace_id:032x}") == ("request", TRACE)
    assert dict(span.attributes or {}) == {"status": 200}
    sent = {asked.headers["traceparent"] for asked in market.coordinator.to("POST /v1/jobs")}
    assert sent == {f"00-{TRACE}-{span.context.span_id:016x}-01"}
