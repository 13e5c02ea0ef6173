"""Results before their blocks: returned when they open, marked as provisional, then confirmed or withdrawn."""

import json
from typing import Any

import anyio
import attrs
import httpx
import pytest

from common.box import SecretKey
from common.envelope import ResultBody
from common.quotes import FeeTerms
from common.sealed_result import seal_result
from svc.client import Client
from svc.core.orders import PreparedOrder
from svc.errors import ChainContradicts, InvalidRequest, PostRefused, ResultTakenBack, WaitTimedOut
from svc.results import Result
from tests.unit.svc.fake_chain import NODE, FakeNode
from tests.unit.svc.fake_coordinator import (
    CANDIDATE,
    FEE_BPS,
    GAS_FEE,
    JOB_REGISTRY,
    Answer,
    Asked,
    Dropped,
    FakeCoordinator,
    Told,
    failing,
    job,
    posted,
    progress,
    quoting,
    settle,
    step,
    stored,
)

CIPHER = SecretKey(b"\x05" * 32)
REGISTRY = bytes.fromhex(JOB_REGISTRY[2:])
CLAIM = step("claim", "stored", provider_id="7")
SETTLED: dict[str, Any] = {"completion_tok": "3", "state": 2, "ended_because": 1, "result_cid": "bafyr"}
FAILED: dict[str, Any] = {"state": 3, "ended_because": 4}


@attrs.define
class Order:
    """One order at a coordinator that reports jobs before their blocks."""

    coordinator: FakeCoordinator
    client: Client
    prepared: PreparedOrder

    def told(self, *steps: tuple[str, tuple[dict[str, object], ...]]) -> list[Told]:
        return [Answer(200, progress(self.prepared.id, status, *each)) for status, each in steps]

    def tell(self, route: str, *answers: Told) -> None:
        """Script the answers of `progress`, `events`, `job` or a content id."""
        base = f"GET /v1/jobs/{self.prepared.id}"
        known = {"progress": f"{base}/progress", "events": f"{base}/events", "job": base}
        self.coordinator.tell(known.get(route, f"GET http://gateway/ipfs/{route}"), *answers)

    def looks(self, route: str = "progress") -> int:
        return len(self.coordinator.to(f"GET /v1/jobs/{self.prepared.id}{'' if route == 'job' else '/' + route}"))

    def holds(self, cid: str = "bafyr", output: str = "out", **sealing: Any) -> None:
        """Store a sealed result. By default it is this job's, sealed to this client's key."""
        raw = sealing.get("made_for", self.prepared.sealed_order.job_id)
        body = ResultBody(raw, output, {"output_tokens": 3}).encode()
        self.tell(cid, Answer(200, seal_result(sealing.get("to", CIPHER.public), 31337, REGISTRY, raw, body)))

    def ends(self, status: str = "completed", **ended: Any) -> None:
        self.tell("job", Answer(200, job(self.prepared.id, status, **(ended or SETTLED))))

    async def result(self) -> Result:
        found = await self.client.first_result(self.prepared)
        return found if isinstance(found, Result) else await self.client.open(found)


def orders(submission: Told = stored) -> Told:
    def answer(asked: Asked) -> Answer:
        if "c" not in asked.body:
            return Answer(402, {"candidates": [CANDIDATE]})
        if "auth_sig" not in asked.body:
            return quoting()(asked)
        return submission if isinstance(submission, Answer) else submission(asked)  # type: ignore[operator] # no Dropped

    return answer


async def ordered(node: FakeNode | None = None) -> Order:
    coordinator = FakeCoordinator({"POST /v1/jobs": [orders()], f"POST {NODE}/": [] if node is None else [node]})
    options = {} if node is None else {"rpc_url": NODE}
    client = coordinator.client(gateways="http://gateway", cipher_key=CIPHER, **options)
    order = Order(coordinator, client, await client.prepare("demo/text", "hello", window="async", units_out=10))
    client._account.last_fee_terms = FeeTerms(FEE_BPS, GAS_FEE)  # as set by submitting the order
    order.holds()
    return order


def stream(order: Order, *told: tuple[str, tuple[dict[str, object], ...]]) -> Answer:
    """Return a progress stream that ends after these events."""
    messages = [json.dumps(progress(order.prepared.id, status, *steps)) for status, steps in told]
    whole = "".join(f"event: provisional\ndata: {message}\n\n" for message in messages)
    return Answer(200, b"retry: 10\n\n" + whole.encode(), {"content-type": "text/event-stream"})


# --- the submission -------------------------------------------------------------------------------------------


async def test_submission_is_over_once_it_is_stored_and_says_so() -> None:
    order = await ordered()
    submitted = await order.client.submit(order.prepared)
    assert (submitted.job_id, submitted.mined, submitted.rests_on) == (order.prepared.id, False, "stored")
    final = await order.client.submit(order.prepared, final=True)
    assert (final.mined, final.rests_on) == (True, "block")
    sent = [asked.headers.get("prefer") for asked in order.coordinator.to("POST /v1/jobs") if "auth_sig" in asked.body]
    assert sent == ["respond-async", None]


async def test_stored_order_with_lost_answer_is_resent_and_joined() -> None:
    order = await ordered()
    lost = iter([True, False])

    def answer(asked: Asked) -> Answer:
        if "auth_sig" in asked.body and next(lost):
            raise httpx.ReadError("connection lost")
        return orders()(asked)  # type: ignore[operator] # a function

    order.coordinator.tell("POST /v1/jobs", answer)
    assert (await order.client.submit(order.prepared)).rests_on == "stored"
    bodies = [asked.body for asked in order.coordinator.to("POST /v1/jobs") if "auth_sig" in asked.body]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]


# --- provisional results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rests_on", ["stored", "broadcast", "block"])
async def test_result_is_taken_when_its_settle_is_reported(rests_on: str) -> None:
    order, seen = await ordered(), []
    order.tell("progress", *order.told(("queued", ()), ("completed", (CLAIM, settle(rests_on=rests_on)))))
    await order.client.submit(order.prepared)
    result = await order.client.first_result(order.prepared, on_change=lambda job: seen.append(job.status))
    assert isinstance(result, Result)
    assert (result.output, result.provisional, result.rests_on) == ("out", True, rests_on)
    assert (result.job.status, result.job.svc.provider_id, result.cost) == ("completed", 7, 2011)
    assert (seen, order.looks("job")) == (["queued", "completed"], 0)


async def test_run_returns_provisional_unless_final() -> None:
    coordinator = FakeCoordinator({"POST /v1/jobs": [orders()]})
    client = coordinator.client(gateways="http://gateway", cipher_key=CIPHER)

    def known(asked: Asked) -> Answer:
        """Report a stored settle, and the job as settled on the first read."""
        if "auth_sig" in asked.body:
            job_id = asked.body["job_id"]
            raw = bytes.fromhex(job_id[2:])
            sealed = seal_result(CIPHER.public, 31337, REGISTRY, raw, ResultBody(raw, "out", {}).encode())
            coordinator.tell("GET http://gateway/ipfs/bafyr", Answer(200, sealed))
            coordinator.tell(f"GET /v1/jobs/{job_id}", Answer(200, job(job_id, "completed", **SETTLED)))
            told = progress(job_id, "completed", CLAIM, settle())
            coordinator.tell(f"GET /v1/jobs/{job_id}/progress", Answer(200, told))
        return orders()(asked)  # type: ignore[operator] # a function

    coordinator.tell("POST /v1/jobs", known)
    early = await client.run("demo/text", "hello", window="async")
    asked = len([route for route in coordinator.routes() if route.endswith(("/progress", "/events"))])
    final = await client.run("demo/text", "hello", window="async", final=True)
    assert [(each.output, each.provisional, each.rests_on) for each in (early, final)] == [
        ("out", True, "stored"),
        ("out", False, "block"),
    ]
    assert asked > 0
    assert not [route for route in coordinator.routes() if route.endswith(f"{final.job_id}/progress")]


async def test_streamed_progress_needs_no_read() -> None:
    order = await ordered()
    order.tell("progress", *order.told(("queued", ())))
    order.tell("events", lambda _: stream(order, ("in_progress", (CLAIM,)), ("completed", (CLAIM, settle()))))
    assert (await order.result()).provisional
    assert order.looks() == 1


async def test_stream_that_breaks_off_is_opened_again() -> None:
    order = await ordered()
    order.tell("progress", *order.told(("queued", ())))
    order.tell(
        "events",
        lambda _: stream(order, ("in_progress", (CLAIM,))),
        Dropped(),
        lambda _: stream(order, ("completed", (CLAIM, settle()))),
    )
    assert (await order.result()).provisional
    assert order.looks("events") >= 3  # at least three: this clock does not wait for the thread that opens the result
    assert all(asked.query == {"provisional": "1"} for asked in order.coordinator.asked if "/events" in asked.route)


async def test_progress_of_another_job_is_ignored() -> None:
    order = await ordered()
    other = progress("0x" + "08" * 32, "completed", CLAIM, settle())
    data = f"event: provisional\ndata: {json.dumps(other)}\n\n".encode()
    order.tell("events", Answer(200, data, {"content-type": "text/event-stream"}))
    order.tell("progress", *order.told(("queued", ())))
    with pytest.raises(WaitTimedOut):
        await order.client.first_result(order.prepared, timeout=20)
    order.tell("progress", Answer(200, other))  # an invalid answer counts as no progress, so wait for the chain
    order.ends()
    assert not (await order.result()).provisional


async def test_unreadable_progress_is_ignored() -> None:
    order = await ordered()
    data = b'event: provisional\ndata: {"job_id": "\xff"}\n\n'
    order.tell("events", Answer(200, data, {"content-type": "text/event-stream"}))
    order.tell("progress", *order.told(("queued", ())))
    with pytest.raises(WaitTimedOut):
        await order.client.first_result(order.prepared, timeout=20)


# --- coordinators with fewer routes -------------------------------------------------------------------------


async def test_coordinator_without_a_progress_stream_is_polled() -> None:
    order = await ordered()
    order.tell("events", failing(400, "invalid_request_error"))
    order.tell("progress", *order.told(*[("queued", ())] * 3, ("completed", (CLAIM, settle()))))
    assert (await order.result()).provisional
    assert order.looks("events") == 1


@pytest.mark.parametrize("status", [404, 400])
async def test_coordinator_without_progress_is_asked_once(status: int) -> None:
    order = await ordered()
    order.coordinator.tell("POST /v1/jobs", orders(posted))
    kind = "not_found" if status == 404 else "invalid_request_error"
    order.tell("progress", failing(status, kind))
    order.ends()
    submitted = await order.client.submit(order.prepared)
    result = await order.result()
    assert (submitted.rests_on, result.provisional, result.rests_on, result.output) == ("block", False, "block", "out")
    await order.result()
    assert order.looks() == (1 if status == 404 else 2)


async def test_coordinator_that_is_away_is_waited_for() -> None:
    order = await ordered()
    away = failing(503, "not_ready", retryable=True)
    order.tell("progress", *[away] * 9, *order.told(("completed", (CLAIM, settle()))))
    assert (await order.result()).provisional


# --- no provisional result ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sealing", [{"made_for": b"\x08" * 32}, {"to": SecretKey(b"\x06" * 32).public}], ids=["another job's", "to another"]
)
async def test_result_that_does_not_open_is_passed_over_for_the_chains(sealing: dict[str, Any]) -> None:
    order = await ordered()
    order.holds("bafyfalse", **sealing)
    order.tell("progress", *order.told(("completed", (CLAIM, settle("bafyfalse")))))
    order.ends()
    result = await order.result()
    assert (result.output, result.provisional) == ("out", False)
    assert len(order.coordinator.to("GET http://gateway/ipfs/bafyfalse")) == 1


async def test_result_withdrawn_during_the_read_is_not_returned() -> None:
    order = await ordered()
    order.tell("progress", *order.told(("queued", ())))
    replaced = ("completed", (CLAIM, settle("bafyold"))), ("in_progress", (CLAIM,)), ("completed", (CLAIM, settle()))
    order.holds("bafyold", "old")
    order.tell("events", lambda _: stream(order, *replaced))
    result = await order.result()
    assert (result.output, result.provisional, result.job.result_cid) == ("out", True, "bafyr")


@pytest.mark.parametrize(
    "wrong", [{"provider_id": "8"}, {"completion_tok": "11"}, {"completion_tok": None}, {"result_cid": None}]
)
async def test_settle_that_cannot_be_is_not_taken(wrong: dict[str, Any]) -> None:
    order = await ordered()
    changed = {name: value for name, value in settle(**wrong).items() if value is not None}
    order.tell("progress", *order.told(("completed", (CLAIM, changed))))
    with pytest.raises(WaitTimedOut):
        await order.client.first_result(order.prepared, timeout=20)
    assert not [route for route in order.coordinator.routes() if "ipfs" in route]


async def test_stored_then_refused_order_ends_the_wait() -> None:
    order = await ordered()
    refused = progress(order.prepared.id, "refused", step("post", "refused", reason="InsufficientBalance"))
    order.tell("progress", *order.told(("queued", ())), Answer(200, refused | {"provisional": False}))
    with pytest.raises(PostRefused, match="was not posted: InsufficientBalance; nothing was collected") as told:
        await order.client.first_result(order.prepared)
    assert told.value.code == "InsufficientBalance"
    with pytest.raises(PostRefused):
        await order.client.wait(order.prepared.id)


# --- confirmation or withdrawal ------------------------------------------------------------------------------


async def provisional(order: Order) -> Result:
    order.tell("progress", *order.told(("completed", (CLAIM, settle()))))
    result = await order.result()
    assert result.provisional
    return result


async def test_provisional_result_is_final_once_the_chain_has_it() -> None:
    order = await ordered()
    result = await provisional(order)
    order.tell("job", failing(404, "not_found"), Answer(200, job(order.prepared.id, "queued")))
    with pytest.raises(WaitTimedOut):
        await result.settled(timeout=5)
    order.ends(**SETTLED | {"completion_tok": "2"})
    final = await order.client.settled(result)
    assert (final.provisional, final.rests_on, final.output, final.cost) == (False, "block", "out", 2008)
    assert await final.settled() is final


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (("failed", FAILED), "reclaim"),
        (("cancelled", {"state": 3, "ended_because": 2}), "cancelled"),
        (("completed", SETTLED | {"result_cid": "bafyother"}), "other_result"),
        (None, "InsufficientBalance"),
    ],
    ids=["reclaimed", "cancelled", "another result", "refused post"],
)
async def test_withdrawn_result_is_reported(ended: tuple[str, dict[str, Any]] | None, code: str) -> None:
    order = await ordered()
    result = await provisional(order)
    if ended is not None:
        order.ends(ended[0], **ended[1])
    else:
        refused = progress(order.prepared.id, "refused", step("post", "refused", reason=code), provisional=False)
        order.tell("progress", Answer(200, refused))
    with pytest.raises(ResultTakenBack, match="the provisional result was not confirmed") as told:
        await result.settled()
    assert (told.value.code, told.value.job_id) == (code, order.prepared.id)


async def test_settled_order_is_checked_against_the_chain() -> None:
    node = FakeNode()
    order = await ordered(node)
    result = await provisional(order)
    order.ends()
    node.post(order.prepared.sealed_order, 800)
    assert not (await result.settled()).provisional
    node.logs.clear()
    node.post(order.prepared.sealed_order, 800, unitsOut=11)
    with pytest.raises(ChainContradicts):
        await result.settled()


async def test_cancellation_waits_for_the_posts_block() -> None:
    order = await ordered()
    cancel = f"POST /v1/jobs/{order.prepared.id}/cancel"
    done = Answer(200, {"job_id": order.prepared.id, "tx_hash": "0x" + "cc" * 32})
    unknown = failing(409, "invalid_request_error", "NotTheOwner")
    order.coordinator.tell(cancel, unknown, done)
    order.tell("progress", *order.told(("queued", ())))
    order.tell("job", failing(404, "not_found"), failing(404, "not_found"), Answer(200, job(order.prepared.id)))
    assert (await order.client.cancel(order.prepared.id)).job_id == order.prepared.id
    assert len(order.coordinator.to(cancel)) == 2
    order.coordinator.tell(cancel, unknown)
    with pytest.raises(InvalidRequest):
        await order.client.cancel(order.prepared.id)


def test_sync_client_waits_for_the_end_of_a_provisional_result() -> None:
    coordinator = FakeCoordinator()
    with coordinator.sync_client() as client:
        given = job("0x" + "07" * 32, "completed", **SETTLED)
        coordinator.tell(f"GET /v1/jobs/{given['id']}", Answer(200, given))
        final = Result(client.jobs.get(str(given["id"])), "out", {})
        assert client.settled(final) is final


async def test_wait_before_the_posts_block_polls_every_second() -> None:
    order = await ordered()
    order.tell("progress", *order.told(("queued", ())))
    order.tell("job", *[failing(404, "not_found")] * 20, Answer(200, job(order.prepared.id, "cancelled")))
    began = anyio.current_time()
    assert (await order.client.wait(order.prepared.id)).status == "cancelled"
    assert 15 < anyio.current_time() - began < 21
