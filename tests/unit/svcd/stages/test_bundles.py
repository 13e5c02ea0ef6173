"""Bundles over the whole daemon, on a virtual clock."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
import trio

from common.bundle import BundleItem, ItemResult, bundle_input, read_bundle_output
from svcd.backends.breaker import FAULTS_TO_OPEN
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import ModelWork, WorkOutput
from tests.support.fakes.market import Market
from tests.unit.svcd.stages.conftest import Start
from tests.unit.svcd.stages.running import Backend, Running, model_for

SLOTS = 4
# {"input":"word 0","max_tokens":50}: 34 bytes, 9 units. At rates of 100 and 200 these count as 4.5 units of output.
UNITS_IN = 9


def bundle_of(*words: str) -> dict[str, Any]:
    return bundle_input([BundleItem({"input": word, "max_tokens": 50}, f"id {word}") for word in words])


def words(number: int) -> list[str]:
    return [f"word {n}" for n in range(number)]


def post(market: Market, model_input: dict[str, Any], **changed: Any) -> str:
    container = market.container(market.envelope(model_input).encode())
    return market.post(container, **{"units_in": "1", "units_out": "100000", **changed})


def results_of(running: Running, job: str) -> tuple[ItemResult, ...]:
    return read_bundle_output(running.opened(job).output)


def journaled_items(running: Running) -> list[bytes]:
    with closing(sqlite3.connect(running.journal_path)) as connection:
        return [row[0] for row in connection.execute("select result from items")]


async def echo(work: ModelWork) -> WorkOutput:
    return WorkOutput(work.input["input"], 10, {"units": 10})


def completed(word: str) -> ItemResult:
    return ItemResult("completed", f"id {word}", word, {"units": 10}, None, UNITS_IN, 10)


async def test_bundle_runs_every_item_and_settles_once(market: Market, start: Start) -> None:
    job = post(market, bundle_of(*words(10)))
    async with start(backend=Backend(echo)) as running:
        assert await running.end_of(job) == ("settled", None)
        assert results_of(running, job) == tuple(map(completed, words(10)))
        assert running.opened(job).usage == {"completed": 10, "failed": 0, "not_run": 0}
        assert market.jobs[job]["completion_tok"] == str(10 * 10 + 10 * UNITS_IN // 2)
        assert [work.id for work in running.backend.ran] == [f"{job}-{n}" for n in range(10)]
        assert journaled_items(running) == []
    assert market.calls.count("settle") == 1


async def test_restart_repeats_no_finished_item(market: Market, start: Start) -> None:
    async def act(work: ModelWork) -> WorkOutput:
        if work.input["input"] == "word 3":
            await trio.sleep_forever()
        if work.input["input"] == "word 4":
            raise WorkFailed("media_input_refused")
        return await echo(work)

    job = post(market, bundle_of(*words(6)))
    async with start(backend=Backend(act)) as running:
        await running.until(lambda: len(journaled_items(running)) == 5)
        assert not any(b"word" in item for item in journaled_items(running))  # encrypted
    second = Backend(echo)
    async with start(backend=second) as running:
        assert await running.end_of(job) == ("settled", None)
        assert [work.item_number for work in second.ran] == [3]
        failed = ItemResult("failed", "id word 4", error_code="media_input_refused")
        assert results_of(running, job) == (*map(completed, words(4)), failed, completed("word 5"))


async def test_deadline_settles_what_is_finished(market: Market, start: Start) -> None:
    async def slow(work: ModelWork) -> WorkOutput:
        await trio.sleep(250)
        return await echo(work)

    job = post(market, bundle_of(*words(12)))  # four at a time, and 600 seconds are enough for two rounds
    async with start(backend=Backend(slow)) as running:
        assert await running.end_of(job) == ("settled", None)
        statuses = [result.status for result in results_of(running, job)]
        assert statuses == ["completed"] * 8 + ["not_run"] * 4
        assert market.jobs[job]["completion_tok"] == str(8 * 10 + 8 * UNITS_IN // 2)


async def test_restart_in_the_margin_settles_finished_items(market: Market, start: Start) -> None:
    async def act(work: ModelWork) -> WorkOutput:
        if work.item_number:
            await trio.sleep_forever()
        return await echo(work)

    job = post(market, bundle_of(*words(6)))
    async with start(backend=Backend(act)) as running:
        await running.until(lambda: len(journaled_items(running)) == 1)
    await trio.sleep(575)  # the window is 600 seconds and the margin 30
    second = Backend(echo)
    async with start(backend=second) as running:
        assert await running.end_of(job) == ("settled", None)
        assert second.ran == []
        assert [result.status for result in results_of(running, job)] == ["completed"] + ["not_run"] * 5


async def test_stopping_settles_what_is_finished(market: Market, start: Start) -> None:
    async def act(work: ModelWork) -> WorkOutput:
        if work.item_number:
            await trio.sleep(400)
        return await echo(work)

    job = post(market, bundle_of(*words(6)))
    async with start(backend=Backend(act)) as running:
        await running.until(lambda: len(journaled_items(running)) == 1)
        running.drain.begin()
        assert await running.end_of(job) == ("settled", None)
        assert [result.status for result in results_of(running, job)] == ["completed"] + ["not_run"] * 5


async def test_bundle_without_a_completed_item_is_failed(market: Market, start: Start) -> None:
    async def refuse(_: ModelWork) -> WorkOutput:
        raise WorkFailed("backend_error", "no such parameter")

    job = post(market, bundle_of(*words(3)))
    async with start(backend=Backend(refuse)) as running:
        assert await running.end_of(job) == ("failed", "backend_error")


async def test_items_wait_while_the_backend_is_down(market: Market, start: Start) -> None:
    faults = iter(range(FAULTS_TO_OPEN))

    async def act(work: ModelWork) -> WorkOutput:
        if next(faults, None) is not None:
            backend.up = False
            raise WorkFailed("backend_exhausted", "refused", backend_fault=True)
        return await echo(work)

    job = post(market, bundle_of(*words(8)))
    models = (model_for("demo/text", {"text"}, slots=1),)
    backend = Backend(act)
    async with start(backend=backend, models=models) as running:
        await running.until(lambda: len(running.backend.ran) == FAULTS_TO_OPEN)
        await trio.sleep(60)
        assert len(running.backend.ran) == FAULTS_TO_OPEN
        running.backend.up = True
        assert await running.end_of(job) == ("settled", None)
        statuses = [result.status for result in results_of(running, job)]
        assert statuses == ["failed"] * FAULTS_TO_OPEN + ["completed"] * 5


async def test_items_use_the_slots_and_let_other_jobs_pass(market: Market, start: Start) -> None:
    busy = 0

    async def act(work: ModelWork) -> WorkOutput:
        nonlocal busy
        busy += 1
        assert busy <= SLOTS
        await trio.sleep(20)
        busy -= 1
        return await echo(work)

    bundle = post(market, bundle_of(*words(40)))
    async with start(backend=Backend(act)) as running:
        await running.until(lambda: len(running.backend.ran) == SLOTS)
        other = market.post(market.container(market.envelope({"input": "now"}).encode()))
        assert await running.end_of(other) == ("settled", None)
        assert len(running.backend.ran) < 40
        assert await running.end_of(bundle) == ("settled", None)


async def test_large_outputs_leave_the_rest_not_run(market: Market, start: Start) -> None:
    async def large(_: ModelWork) -> WorkOutput:
        return WorkOutput("x" * 3_000_000, 10)

    job = post(market, bundle_of(*words(8)))
    models = (model_for("demo/text", {"text"}, slots=1),)
    async with start(backend=Backend(large), models=models) as running:
        assert await running.end_of(job) == ("settled", None)
        assert [result.status for result in results_of(running, job)] == ["completed"] * 3 + ["not_run"] * 5
    assert market.calls.count("files") == 0


@pytest.mark.parametrize(
    ("model_input", "order", "reason"),
    [
        # The bundle costs 2 * 50 + ⌈2 * 8 / 2⌉ = 108 units of output, and the order pays for 107.
        pytest.param(bundle_of("a", "b"), {"units_out": "107"}, "units_in_short", id="too few units out"),
        # A bundle needs 1 unit of input, and the order pays for 0.
        pytest.param(bundle_of("a"), {"units_in": "0"}, "units_in_short", id="no unit in"),
        # A unit of input costs as much as 1000 / 200 = 5 units of output. The bundle costs 50 + 8 * 5 = 90 units of
        # output, and the order pays for 89.
        pytest.param(
            bundle_of("a"),
            {"rate_in": "1000", "rate_out": "200", "units_out": "89"},
            "units_in_short",
            id="dear input",
        ),
        pytest.param({"svc_bundle": 2, "items": []}, {}, "malformed_envelope", id="another version"),
        pytest.param(bundle_input([BundleItem({"width": 8})]), {}, "media_input_refused", id="an image"),
    ],
)
async def test_invalid_bundle_fails_before_any_item_runs(
    model_input: dict[str, Any], order: dict[str, str], reason: str, market: Market, start: Start
) -> None:
    job = post(market, model_input, **order)
    async with start(models=(model_for("demo/text", {"text", "image"}),)) as running:
        assert await running.end_of(job) == ("failed", reason)
        assert running.backend.ran == []


async def test_bundle_that_pays_exactly_its_units_is_run(market: Market, start: Start) -> None:
    job = post(market, bundle_of("a", "b"), units_out="108")
    async with start(backend=Backend(echo)) as running:
        assert await running.end_of(job) == ("settled", None)


async def test_open_bundle_is_failed_unrun(market: Market, start: Start) -> None:
    sealed = market.container(market.envelope(bundle_of("a")).encode(), recipient=market.escrow.public)
    job = market.post(sealed, designated="0", units_out="100000")
    async with start() as running:
        assert await running.end_of(job) == ("failed", "unservable")
        assert running.backend.ran == []
