"""Complete answers from the market: each route, errors, budgets, idempotency, retries, restarts."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from svc.serve.settings import BudgetSettings, BuyingSettings, ModelSettings, ServeSettings
from tests.unit.svc.fake_coordinator import Answer, failing, until
from tests.unit.svc.serve.market import SETTLED, ServedMarket, candidate

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HELLO: dict[str, Any] = {"model": "demo/chat", "messages": [{"role": "user", "content": "hello"}]}
NEVER = ("queued",)
FAILS = ("queued", "in_progress", "failed")


def buying(**changed: Any) -> ServeSettings:
    return ServeSettings(buying=BuyingSettings(**changed))


@pytest.mark.parametrize("model", ["demo/chat", "demo/text"])
async def test_chat_is_answered_by_a_model_of_either_route(market: ServedMarket, model: str, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, {**HELLO, "model": model})
    (choice,) = heard.json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("you said: hello", "stop")
    assert (heard.json["object"], heard.json["model"]) == ("chat.completion", model)
    assert heard.json["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize("model", ["demo/chat", "demo/text"])
async def test_response_is_answered_by_a_model_of_either_route(
    market: ServedMarket, model: str, tmp_path: Path
) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(RESPONSES, {"model": model, "input": "hello"})
    (item,) = heard.json["output"]
    assert (item["role"], item["content"][0]["text"]) == ("assistant", "you said: hello")
    assert (heard.json["object"], heard.json["status"], heard.json["model"]) == ("response", "completed", model)
    assert heard.json["usage"]["output_tokens"] == 3


async def test_answer_says_what_it_cost_and_whose_it_is(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO, headers={"x-request-id": "mine"})
    (job,) = market.jobs.values()
    paid = job.body["units_in"] + 3 * 2  # 3 tokens at 2 each; the 2.5 % fee rounds down to 0
    told = {"job_id": job.id, "provider": 7, "amount": job.body["amount"], "cost": str(paid + 2_000)}
    parts = {"provider": str(paid), "fee": "0", "gas_fee": "2000"}
    assert heard.json["svc"] == told | {"cost_parts": parts}
    assert {f"x-svc-{name}": heard.headers[f"x-svc-{name}"] for name in ("job-id", "amount", "cost", "provider")} == {
        f"x-svc-{name.replace('_', '-')}": str(value) for name, value in told.items()
    }
    assert heard.headers["x-request-id"] == "mine"


async def test_embeddings_come_in_the_encoding_that_was_asked_for(market: ServedMarket, tmp_path: Path) -> None:
    asked = {"model": "demo/embed", "input": ["a", "b"]}
    async with market.served(tmp_path) as caller:
        numbers = await caller.post("/v1/embeddings", asked)
        packed = await caller.post("/v1/embeddings", {**asked, "encoding_format": "base64"})
    assert [row["embedding"] for row in numbers.json["data"]] == [[0.25, -0.5]] * 2
    assert [row["embedding"] for row in packed.json["data"]] == ["AACAPgAAAL8="] * 2
    assert all("encoding_format" not in job.input for job in market.jobs.values())


async def test_images_are_ordered_by_size_and_number(market: ServedMarket, tmp_path: Path) -> None:
    asked = {"model": "demo/image", "prompt": "a seal", "n": 2, "size": "512x256"}
    async with market.served(tmp_path) as caller:
        heard = await caller.post("/v1/images/generations", {**asked, "response_format": "url"})
        (job,) = market.jobs.values()
        whole = await caller.post("/v1/images/generations", asked)
    assert job.input == {"prompt": "a seal", "num_images": 2, "width": 512, "height": 256}
    assert heard.json["data"] == [{"url": "data:image/png;base64,iVBORw0KGgo="}] * 2
    assert whole.json["data"] == [{"b64_json": "iVBORw0KGgo="}] * 2


async def test_callers_identity_is_not_sealed(market: ServedMarket, tmp_path: Path) -> None:
    marks = {"user": "u1", "metadata": {"a": "b"}, "store": True, "stream": False, "safety_identifier": "s", "n": None}
    async with market.served(tmp_path) as caller:
        await caller.post(CHAT, {**HELLO, **marks})
    (job,) = market.jobs.values()
    assert job.input == {"messages": HELLO["messages"]}


async def test_models_are_listed_under_the_names_that_programs_use(market: ServedMarket, tmp_path: Path) -> None:
    named = {"gpt-4o-mini": ModelSettings(model="demo/text"), "gone": ModelSettings(model="no/such")}
    async with market.served(tmp_path, ServeSettings(models=named, only_named=True)) as caller:
        listed = await caller.get("/v1/models")
        one = await caller.get("/v1/models/gpt-4o-mini")
        other = await caller.post(RESPONSES, {"model": "demo/text", "input": "hello"})
        heard = await caller.post(RESPONSES, {"model": "gpt-4o-mini", "input": "hello"})
    assert [model["id"] for model in listed.json["data"]] == ["gpt-4o-mini"]
    assert one.json["svc"]["model"] == "demo/text"
    assert (other.status, other.code) == (404, "model_not_found")
    assert (heard.json["model"], [job.model for job in market.jobs.values()]) == ("gpt-4o-mini", ["demo/text"])


async def test_second_request_waits_for_nothing_but_its_own_post(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path, ServeSettings(tabs="off")) as caller:
        await caller.post(CHAT, HELLO)
        before = len(market.coordinator.asked)
        await caller.post(CHAT, HELLO)
    asked = [each.route for each in market.coordinator.asked[before:]]
    assert asked.count("POST /v1/jobs") == 1
    assert {route.partition("/v1/jobs")[0] for route in asked if "ipfs" not in route} == {"POST ", "GET "}


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (CHAT, {**HELLO, "model": "no/such"}, 404, "model_not_found", "model"),
        (CHAT, {**HELLO, "model": "demo/embed"}, 404, "model_not_found", "model"),
        (CHAT, {"messages": []}, 400, None, "model"),
        (CHAT, {**HELLO, "model": "demo/text", "logit_bias": {"1": 1}}, 400, "unsupported_parameter", "logit_bias"),
        (CHAT, {**HELLO, "background": True}, 400, "unsupported_parameter", "background"),
        (RESPONSES, {"model": "demo/text", "prompt": {"id": "p"}}, 400, "unsupported_parameter", "prompt"),
        ("/v1/images/generations", {"model": "demo/image", "prompt": "a", "size": "big"}, 400, None, "size"),
        ("/v1/completions", {"model": "demo/text", "prompt": "a"}, 404, "unknown_url", None),
    ],
)  # fmt: skip
async def test_unsupported_request_gets_openais_error_codes(  # noqa: PLR0917 - a row of the table
    market: ServedMarket, path: str, body: Any, status: int, code: str | None, param: str | None, tmp_path: Path
) -> None:
    async with market.served(tmp_path) as caller:
        heard = await caller.post(path, body)
    error = heard.json["error"]
    assert (heard.status, error["code"], error["param"], error["type"]) == (
        status,
        code,
        param,
        "invalid_request_error",
    )
    assert (heard.headers["x-should-retry"], market.posts) == ("false", [])


async def test_unfetchable_address_is_refused_by_its_path(market: ServedMarket, tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, {**HELLO, "messages": [{"role": "user", "content": [part]}]})
    assert (heard.status, heard.json["error"]["param"]) == (400, "messages[0].content[0].image_url.url")


async def test_empty_wallet_is_reported_as_a_quota(market: ServedMarket, tmp_path: Path) -> None:
    market.refuse = failing(409, "invalid_request_error", "InsufficientBalance")
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert (heard.status, heard.code, heard.headers["x-should-retry"]) == (429, "insufficient_quota", "false")


async def test_answer_above_the_ceiling_of_a_request_is_not_bought(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path, ServeSettings(budget=BudgetSettings(per_request=1_000))) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert (heard.status, heard.code, market.posts) == (429, "insufficient_quota", [])


async def test_daily_budget_survives_a_restart(market: ServedMarket, tmp_path: Path) -> None:
    asked = {**HELLO, "max_tokens": 10}
    async with market.served(tmp_path) as caller:
        amount = int((await caller.post(CHAT, asked)).json["svc"]["amount"])
    settings = ServeSettings(budget=BudgetSettings(per_day=2 * amount))
    async with market.served(tmp_path, settings) as caller:
        second = await caller.post(CHAT, asked)
        third = await caller.post(CHAT, asked)
    assert (second.status, third.status, third.json["error"]["type"]) == (200, 429, "insufficient_quota")
    assert len(market.posts) == 2


async def test_missing_sellers_are_reported_as_unavailable(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates = []
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert (heard.status, heard.code, heard.headers["x-should-retry"]) == (503, "no_live_provider", "true")


# --- the next provider ----------------------------------------------------------------------------------------


async def test_next_provider_is_tried_after_a_failure(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates, market.steps = [candidate(7), candidate(8)], {7: FAILS}
    async with market.served(tmp_path) as caller:
        heard = [await caller.post(CHAT, HELLO) for _ in range(2)]
    assert [answer.json["svc"]["provider"] for answer in heard] == [8, 8]
    assert [job.provider for job in market.jobs.values()] == [7, 8, 8]


async def test_unclaimed_job_is_cancelled_and_offered_again(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates, market.steps = [candidate(7), candidate(8)], {7: NEVER}
    async with market.served(tmp_path, buying(claim_seconds=20)) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert heard.json["svc"]["provider"] == 8
    assert [job.steps for job in market.jobs.values()] == [["cancelled"], ["completed"]]


async def test_job_of_the_only_provider_is_waited_for(market: ServedMarket, tmp_path: Path) -> None:
    market.steps = {7: ("queued",) * 40 + SETTLED}
    async with market.served(tmp_path, buying(claim_seconds=5)) as caller:
        heard = await caller.post(CHAT, HELLO)
    assert (heard.status, len(market.jobs)) == (200, 1)


async def test_failure_of_all_providers_is_retryable(market: ServedMarket, tmp_path: Path) -> None:
    market.steps = {7: FAILS}
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (heard.status, heard.code, heard.headers["x-should-retry"]) == (502, "job_provider_fail", "true")
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]


async def test_hedge_buys_a_second_answer_where_it_is_set(market: ServedMarket, tmp_path: Path) -> None:
    market.candidates, market.steps = [candidate(7), candidate(8)], {7: NEVER}
    async with market.served(tmp_path, buying(hedge_seconds=3, claim_seconds=3_000)) as caller:
        heard = await caller.post(CHAT, HELLO)
        await anyio.sleep(10)
    assert heard.json["svc"]["provider"] == 8
    ends = {job.provider: job.steps for job in market.jobs.values()}
    assert ends == {7: ["cancelled"], 8: ["completed"]}  # the slower job is cancelled


async def test_raised_price_is_paid_within_the_limits(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        await caller.post(CHAT, HELLO)
        known = caller.served.context.prices._fee_terms
        assert known is not None
        caller.served.context.prices._fee_terms = type(known)(known.fee_bps, 1)  # the charges as known an hour ago
        market.refuse = None
        heard = await caller.post(CHAT, HELLO)
    assert heard.status == 200
    assert int(heard.json["svc"]["amount"]) == int(market.posts[-1].body["amount"])


# --- idempotency, disconnects, restarts -----------------------------------------------------------------------


async def test_same_idempotency_key_never_buys_twice(market: ServedMarket, tmp_path: Path) -> None:
    mine = {"idempotency-key": "one"}
    heard = []

    async def ask() -> None:
        heard.append(await caller.post(CHAT, HELLO, headers=mine))

    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
        await ask()
    async with market.served(tmp_path) as caller:
        await ask()
        other = await caller.post(CHAT, {**HELLO, "seed": 1}, headers=mine)
    assert len({answer.json["svc"]["job_id"] for answer in heard}) == len(market.posts) == 1
    assert (other.status, other.code) == (400, "idempotency_key_reused")


async def test_key_of_a_free_failure_may_buy_again(market: ServedMarket, tmp_path: Path) -> None:
    market.steps = {7: FAILS}
    async with market.served(tmp_path) as caller:
        failed = await caller.post(CHAT, HELLO, headers={"idempotency-key": "one"})
        market.steps = {}
        heard = await caller.post(CHAT, HELLO, headers={"idempotency-key": "one"})
    assert (failed.status, heard.status, len(market.posts)) == (502, 200, 2)


async def test_same_question_at_the_same_time_is_bought_for_each(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(caller.post, CHAT, HELLO)
    assert len(market.posts) == 3


async def test_disconnect_cancels_an_unclaimed_job(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, gone = {7: NEVER}, anyio.Event()
    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: caller.post(CHAT, HELLO, gone=gone))
            await until(lambda: bool(market.jobs))
            gone.set()
        await anyio.sleep(10)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert [(job.state, job.cost) for job in spent] == [("unpaid", 0)]


async def test_undelivered_answer_is_returned_to_a_repeated_request(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, gone = {7: ("in_progress",) * 8 + ("completed",)}, anyio.Event()
    async with market.served(tmp_path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: caller.post(CHAT, HELLO, gone=gone))
            await until(lambda: bool(market.jobs))
            gone.set()
        joined = await caller.post(CHAT, HELLO)
        fresh = await caller.post(CHAT, HELLO)
    assert joined.json["svc"]["job_id"] == next(iter(market.jobs))
    assert (fresh.status, len(market.posts)) == (200, 2)


async def test_restart_finds_a_running_job_and_serves_its_result(market: ServedMarket, tmp_path: Path) -> None:
    market.steps, gone = {7: ("in_progress",)}, anyio.Event()
    async with market.served(tmp_path) as caller, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: caller.post(CHAT, HELLO, gone=gone))
        await until(lambda: bool(market.jobs))
        caller.served.context.is_stopping = True
        gone.set()
    (job,) = market.jobs.values()
    job.steps[:] = ["in_progress", "completed"]
    async with market.served(tmp_path) as caller:
        heard = await caller.post(CHAT, HELLO)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (heard.status, heard.json["svc"]["job_id"], len(market.posts)) == (200, job.id, 1)
    assert [entry.state for entry in spent] == ["done"]


async def test_unanswered_post_counts_until_it_is_known(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        await caller.post(CHAT, HELLO)
        market.coordinator.tell("POST /v1/jobs", failing(504, "receipt_timeout", "0x" + "ab" * 32))
        heard = await caller.post(CHAT, HELLO)
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (heard.status, [job.state for job in spent]) == (502, ["done", "unpaid"])


async def test_unreadable_result_is_paid_and_read_again_later(market: ServedMarket, tmp_path: Path) -> None:
    async with market.served(tmp_path) as caller:
        kept = market._order

        def without_gateway(asked: Any) -> Any:
            answer = kept(asked)
            if "auth_sig" in asked.body:
                market.coordinator.tell(f"GET http://gateway/ipfs/{asked.body['job_id'][2:20]}", Answer(404))
            return answer

        market.coordinator.tell("POST /v1/jobs", without_gateway)
        failed = await caller.post(CHAT, HELLO)
        (job,) = market.jobs.values()
        spent = await caller.served.context.ledger.list_jobs_since(0)
    assert (failed.status, failed.headers["x-svc-job-id"]) == (502, job.id)
    assert [entry.state for entry in spent] == ["done"]


async def test_many_requests_at_a_time_are_each_bought(market: ServedMarket, tmp_path: Path) -> None:
    asked = {**HELLO, "max_tokens": 5}
    heard = []

    async def ask() -> None:
        heard.append(await caller.post(CHAT, asked))

    async with market.served(tmp_path) as caller, anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(ask)
    assert [answer.status for answer in heard] == [200] * 40
    assert len({answer.json["svc"]["job_id"] for answer in heard}) == 40
