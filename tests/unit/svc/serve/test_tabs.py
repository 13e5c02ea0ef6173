"""Answers of `svc serve` in tabs: streaming, accounting, and the fallback to a job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from common.scalars import hex_of
from common.tab.messages import TabFailure
from svc.serve.serving import open_server
from svc.serve.settings import BudgetSettings, ServeSettings
from tests.unit.svc.fake_coordinator import Answer, failing, until
from tests.unit.svc.serve.market import PORT, Caller
from tests.unit.svc.tabs.market import LISTED, TabMarket, TabProvider

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


def hello(text: str = "why is it", **more: object) -> dict[str, object]:
    return {"model": "demo/chat", "max_tokens": 16, "messages": [{"role": "user", "content": text}], **more}


@asynccontextmanager
async def served(market: TabMarket, folder: Path, **settings: Any) -> AsyncIterator[Caller]:
    market.coordinator.tell("GET /v1/models", Answer(200, {"object": "list", "data": [LISTED]}))
    said: list[str] = []
    client = market.client({"XDG_CONFIG_HOME": str(folder)})
    async with open_server(
        client, ServeSettings(**{"tabs": "always", **settings}), folder, PORT, said.append
    ) as server:
        keys = server.application.keys._keys
        yield Caller(server, {key.name: key.secret.decode() for key in keys}, said)


def jobs_of(caller: Caller) -> Any:
    ledger = caller.served.context.ledger
    return ledger.run(
        lambda c: c.execute(
            "select p.kind, j.state, j.cost from jobs j join purchases p on p.id = j.purchase order by j.at"
        ).fetchall()
    )


async def test_chats_share_a_tab_and_are_accounted_one_by_one(tmp_path: Path) -> None:
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        first = await caller.post(CHAT, hello())
        second = await caller.post(CHAT, hello("and now"))
        rows = await jobs_of(caller)
    assert [each.json["choices"][0]["message"]["content"] for each in (first, second)] == ["why is it ", "and now "]
    assert first.json["svc"]["job_id"] == second.json["svc"]["job_id"] != ""
    assert (first.json["svc"]["tab_request"], second.json["svc"]["tab_request"]) == ("1", "2")
    assert first.json["id"] != second.json["id"]
    assert len(market.tabs) == 1
    assert sorted((kind, state) for kind, state, _ in rows) == [("chat", "done"), ("chat", "done"), ("tab", "posting")]


async def test_tokens_are_passed_on_as_they_come(tmp_path: Path) -> None:
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        heard = await caller.post(CHAT, hello(stream=True))
    assert heard.headers["x-svc-job-id"] == hex_of(market.tab.job_id)
    assert heard.headers["x-svc-tab-request"] == "1"
    deltas = [each["choices"][0]["delta"].get("content") for each in heard.events if each["choices"]]
    assert [each for each in deltas if each] == ["why ", "is ", "it "]
    assert heard.events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_responses_are_streamed_from_chat_chunks(tmp_path: Path) -> None:
    market = TabMarket()
    request = {"model": "demo/chat", "input": "why is it", "max_output_tokens": 16, "stream": True}
    async with served(market, tmp_path) as caller:
        heard = await caller.post(RESPONSES, request)
    kinds = [each["type"] for each in heard.events]
    texts = [each["delta"] for each in heard.events if each["type"] == "response.output_text.delta"]
    assert texts == ["why ", "is ", "it "]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 1
    assert [each["sequence_number"] for each in heard.events] == list(range(len(kinds)))
    assert heard.events[-1]["response"]["output"][0]["content"][0]["text"] == "why is it "


async def test_failed_request_is_bought_as_a_job(tmp_path: Path) -> None:
    """The second order is the job's: this market opens another tab for it, so it is never answered."""
    market = TabMarket(lambda _, request: [TabFailure(request.id, "backend_error")])
    async with served(market, tmp_path) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.post, CHAT, hello())
        rows = await jobs_of(caller)
        while len(market.tabs) < 2:
            await anyio.sleep(1)
            rows = await jobs_of(caller)
        tasks.cancel_scope.cancel()
    assert ("chat", "unpaid", "0") in rows


async def test_repeated_idempotency_key_answers_from_the_tab(tmp_path: Path) -> None:
    market = TabMarket()
    headers = {"idempotency-key": "k1"}
    async with served(market, tmp_path) as caller:
        first = await caller.post(CHAT, hello(), headers=headers)
        second = await caller.post(CHAT, hello(), headers=headers)
    assert first.json == second.json
    assert market.tab.runs == [1]


async def test_tab_never_exceeds_the_budget(tmp_path: Path) -> None:
    def check(tab: TabProvider) -> None:
        amounts.append(int(tab.order["amount"]))

    amounts: list[int] = []
    market = TabMarket(setup=check)
    async with served(market, tmp_path, budget=BudgetSettings(per_hour=50_000)) as caller:
        assert (await caller.post(CHAT, hello())).status == 200
    assert amounts
    assert amounts[0] <= 25_000  # half, so that single jobs continue beside it


def reserved(caller: Caller) -> int:
    context = caller.served.context
    return context.budgets.limits_with_usage(context.clock())[0][1]


async def test_budget_counts_an_open_tab_whole(tmp_path: Path) -> None:
    """Its provider can charge all of it until the settle."""
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        for text in ("one", "two"):
            assert (await caller.post(CHAT, hello(text))).status == 200
            assert reserved(caller) == int(market.tab.order["amount"])
        tab = market.tab
        await anyio.sleep(100)
        assert tab.closed == "owner"
        assert reserved(caller) == int(market._shown(tab, claimed=True)["svc"]["cost"])


async def test_tab_of_the_last_run_is_closed_and_accounted(tmp_path: Path) -> None:
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        answered = await caller.post(CHAT, hello())
        await until(lambda: not market.tab.waiting)
    async with served(market, tmp_path) as caller:
        assert reserved(caller) == int(market.tab.order["amount"])
        rows = await jobs_of(caller)
        while "posting" in {state for _, state, _ in rows}:
            await anyio.sleep(1)
            rows = await jobs_of(caller)
    assert market.tab.closed == "owner"
    settled = market._shown(market.tab, claimed=True)
    assert sum(int(cost) for _, _, cost in rows) == int(settled["svc"]["cost"])
    assert answered.status == 200


async def test_request_of_a_killed_run_is_counted_once(tmp_path: Path) -> None:
    """Its answer was acknowledged, but the process was killed before the ledger had its cost."""
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        await caller.post(CHAT, hello())
        await until(lambda: not market.tab.waiting)
        ledger = caller.served.context.ledger
        await ledger.run(lambda c: c.execute("update jobs set state = 'posting', cost = null where job_id like '%/1'"))
        await ledger.run(lambda c: c.execute("update purchases set state = 'running', delivered = 0"))
    async with served(market, tmp_path) as caller:
        rows = await jobs_of(caller)
        while "posting" in {state for _, state, _ in rows}:
            await anyio.sleep(1)
            rows = await jobs_of(caller)
        await anyio.sleep(1)
        rows = await jobs_of(caller)
        spent = reserved(caller)
    cost = int(market._shown(market.tab, claimed=True)["svc"]["cost"])
    assert sum(int(cost) for _, _, cost in rows) == spent == cost


async def test_tab_that_ends_as_full_is_accounted(tmp_path: Path) -> None:
    market = TabMarket(setup=lambda tab: tab.settle("tabs_full"))
    async with served(market, tmp_path) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.post, CHAT, hello())
        rows = await jobs_of(caller)
        while ("tab", "done") not in {(kind, state) for kind, state, _ in rows}:
            await anyio.sleep(1)
            rows = await jobs_of(caller)
        tasks.cancel_scope.cancel()
    (cost,) = [int(cost) for kind, state, cost in rows if (kind, state) == ("tab", "done")]
    assert cost == int(market._shown(market.tabs[0], claimed=True)["svc"]["cost"]) > 0


async def test_late_overcharge_of_a_silent_provider_is_accounted(tmp_path: Path) -> None:
    """The provider claims the tab, never answers, and later charges more than nothing."""

    def silent(tab: TabProvider) -> None:
        tab.tamper, tab.overcharge = lambda _: [], 5_000

    market = TabMarket(setup=silent)
    async with served(market, tmp_path) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(caller.post, CHAT, hello())
        await anyio.sleep(1)
        refusal = failing(409, "invalid_request_error", "NotCancellable")
        market.coordinator.tell(f"POST /v1/jobs/{hex_of(market.tabs[0].job_id)}/cancel", refusal)
        await anyio.sleep(200)
        reserved = [used for _, used in caller.served.context.budgets.limits_with_usage(caller.served.context.clock())]
        assert reserved[0] >= int(market.tabs[0].order["amount"])
        market.tabs[0].settle("idle")
        rows = await jobs_of(caller)
        while ("tab", "done") not in {(kind, state) for kind, state, _ in rows}:
            await anyio.sleep(1)
            rows = await jobs_of(caller)
        faulty = await caller.served.context.client.tabs.faulty_providers()
        tasks.cancel_scope.cancel()
    costs = [int(cost) for kind, state, cost in rows if (kind, state) == ("tab", "done")]
    assert costs == [int(market._shown(market.tabs[0], claimed=True)["svc"]["cost"])]
    assert list(faulty) == [7]


async def test_limit_of_a_request_also_holds_in_a_tab(tmp_path: Path) -> None:
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        refused = await caller.post(CHAT, hello(), headers={"x-svc-max-amount": "1"})
    assert refused.status == 429
    assert market.tab.runs == []


async def test_page_shows_a_request_in_a_tab(tmp_path: Path) -> None:
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        link = caller.served.create_link().partition("#/open/")[2]
        opened = await caller.call("POST", "/page/session", b"", key=None, headers={"x-svc-page": link})
        cookie = opened.headers["set-cookie"].partition(";")[0]
        headers = {"cookie": cookie, "x-svc-page": opened.json["token"]}
        answer = await caller.post(CHAT, hello())
        tab = answer.json["svc"]["job_id"]
        shown = await caller.call("GET", f"/page/jobs/{tab}/1", b"", key=None, headers=headers)
        unknown = await caller.call("GET", f"/page/jobs/{tab}/9", b"", key=None, headers=headers)
    assert shown.json["job_id"] == f"{tab}/1"
    assert shown.json["cost"] == answer.json["svc"]["cost"]
    assert shown.json["market"]["status"] == "in_progress"
    assert unknown.code == "job_not_found"


async def test_tab_with_too_many_replies_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc.serve.tabs._MAX_REPLY_CHARS", 10)
    market = TabMarket()
    async with served(market, tmp_path) as caller:
        statuses = [(await caller.post(CHAT, hello(text))).status for text in ("one", "two")]
        await until(lambda: market.tabs[0].closed == "owner")
    assert statuses == [200, 200]
    assert len(market.tabs) == 2
