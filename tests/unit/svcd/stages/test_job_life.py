"""One job from the poll to its end, in a whole daemon, and the spans of its stages."""

from typing import Any, Final

import httpx
import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from svcd.backends.discount import AskRates
from svcd.journal.work import ModelWork, WorkOutput
from tests.support.fakes.market import Market
from tests.support.fakes.market_answers import answer, error, instead, lost, unreached
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, count, model_for


async def test_designated_job_is_claimed_opened_run_sealed_and_settled(market: Market, start: Start) -> None:
    settled, claimed = count("svcd_jobs_settled_total"), count("svcd_jobs_claimed_total")
    job = market.post()
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)
        assert running.ground.slots.held_slots == 0
    assert running.opened(job).output == {"input": "sealed jobs"}
    assert market.jobs[job]["completion_tok"] == "10"
    assert count("svcd_jobs_settled_total") == settled + 1
    assert count("svcd_jobs_claimed_total") == claimed + 1


async def test_open_job_is_opened_with_the_escrows_key(market: Market, start: Start) -> None:
    job = market.post(market.container(recipient=market.escrow.public), designated="0")
    async with start() as running:
        assert await running.end_of(job) == ("settled", None)
    assert running.opened(job).job_id == bytes.fromhex(job[2:])


async def test_large_result_is_uploaded_and_named_in_the_settle(market: Market, start: Start) -> None:
    async def large(_: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 16_000_000, 10)

    job = market.post()
    async with start(backend=Backend(large)) as running:
        assert await running.end_of(job) == ("settled", None)
        assert list((running.ground.config.state_directory / "results").iterdir()) == []
    assert market.calls.count("files") == 1
    assert len(str(running.opened(job).output)) == 16_000_000


async def test_upload_without_an_answer_is_made_again(market: Market, start: Start) -> None:
    async def large(_: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 16_000_000, 10)

    job = market.post()
    market.scripts["files"] += [unreached(), lost()]
    async with start(backend=Backend(large)) as running:
        assert await running.end_of(job) == ("settled", None)
    assert len(str(running.opened(job).output)) == 16_000_000


async def test_upload_that_lapsed_before_the_settle_is_made_again(market: Market, start: Start) -> None:
    async def large(_: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 16_000_000, 10)

    job = market.post()
    market.scripts["settle"].append(instead(error(400, "unknown_result")))
    async with start(backend=Backend(large)) as running:
        assert await running.end_of(job) == ("settled", None)
    assert market.calls.count("files") == 2


async def test_output_over_the_ordered_units_is_charged_as_ordered(market: Market, start: Start) -> None:
    async def talkative(work: ModelWork) -> WorkOutput:
        return WorkOutput("much", work.units_out + 1)

    job = market.post()
    async with start(backend=Backend(talkative)) as running:
        assert await running.end_of(job) == ("settled", None)
    assert market.jobs[job]["completion_tok"] == "1000"


async def test_session_that_the_coordinator_forgot_is_minted_again(market: Market, start: Start) -> None:
    async with start() as running:
        await trio.sleep(1)
        market.sessions.clear()
        job = market.post()
        assert await running.end_of(job) == ("settled", None)
    assert len(market.sessions) == 1


async def test_held_jobs_never_exceed_the_slots(market: Market, start: Start) -> None:
    most = 0

    async def slow(work: ModelWork) -> WorkOutput:
        nonlocal most
        most = max(most, running.ground.slots.held_slots)
        await trio.sleep(5)
        return WorkOutput(work.input, 1)

    jobs = [market.post(market.container(market.envelope({"input": str(n)}).encode())) for n in range(10)]
    async with start(backend=Backend(slow)) as running:
        for job in jobs:
            assert await running.end_of(job) == ("settled", None)
    assert most == 4


async def test_earliest_deadline_runs_first(market: Market, start: Start) -> None:
    async def slow(work: ModelWork) -> WorkOutput:
        await trio.sleep(5)
        return WorkOutput(work.input, 1)

    one_slot = model_for("demo/text", {"text"}, slots=1, asks={600: AskRates(0, 1), 300: AskRates(0, 1)})
    jobs = []
    for n, sla in enumerate(("600", "600", "300")):
        jobs.append(market.post(market.container(market.envelope({"input": str(n)}).encode()), sla_secs=sla))
        market.claim(jobs[-1])
    async with start(models=(one_slot,), backend=Backend(slow)) as running:
        for job in jobs:
            assert await running.end_of(job) == ("settled", None)
        ran = ["0x" + work.job_id.hex() for work in running.backend.ran]
    assert ran == [jobs[0], jobs[2], jobs[1]]  # the first job started before the others arrived


TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
ORDER_SPAN: Final = "00f067aa0ba902b7"
CONTEXT: Final = f"00-{TRACE}-{ORDER_SPAN}-01"
MODEL = model_for("demo/text", {"text"})


def with_traces(market: Market, traces: object) -> None:
    """Answer polls with these rows."""

    async def script(perform: Any) -> httpx.Response:
        return answer(200, {**perform().json(), "traces": traces})

    market.always["poll"] = script


def names_below(spans: tuple[ReadableSpan, ...], parent: int) -> list[str]:
    return sorted(span.name for span in spans if span.parent is not None and span.parent.span_id == parent)


async def test_stages_are_in_the_trace_of_the_order(
    market: Market, start: Start, made_spans: InMemorySpanExporter
) -> None:
    job = market.post()
    with_traces(market, [{"job_id": job, "traceparent": CONTEXT}])
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    spans = made_spans.get_finished_spans()
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}
    assert names_below(spans, int(ORDER_SPAN, 16)) == ["poll"]
    (poll,) = (span for span in spans if span.name == "poll")
    assert names_below(spans, poll.context.span_id) == ["claim", "open", "run", "seal", "settle"]


@pytest.mark.parametrize(
    "traces",
    [
        None,
        "many",
        {"job_id": CONTEXT},
        [None, 7, [], {}, {"traceparent": CONTEXT}, {"job_id": 7, "traceparent": CONTEXT}],
        [{"job_id": "0x" + "00" * 32, "traceparent": CONTEXT}] * 2_000,
    ],
)
async def test_malformed_contexts_are_ignored(
    traces: object, market: Market, start: Start, made_spans: InMemorySpanExporter
) -> None:
    job = market.post()
    with_traces(market, traces)
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    (poll,) = (span for span in made_spans.get_finished_spans() if span.name == "poll")
    assert poll.parent is None


@pytest.mark.parametrize("sent", ["junk", 7, None, CONTEXT * 1_000, CONTEXT.replace("00-", "01-", 1)])
async def test_malformed_context_of_a_job_begins_a_new_trace(
    sent: object, market: Market, start: Start, made_spans: InMemorySpanExporter
) -> None:
    job = market.post()
    with_traces(market, [{"job_id": job, "traceparent": sent}])
    async with start(models=(MODEL,)) as running:
        assert await running.end_of(job) == ("settled", None)
    (poll,) = (span for span in made_spans.get_finished_spans() if span.name == "poll")
    assert poll.parent is None
