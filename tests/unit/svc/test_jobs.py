import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from itertools import pairwise

import anyio
import pytest

from common.scalars import hex_of
from svc.errors import InternalError, InvalidRequest, OrderRefused, WaitTimedOut
from svc.jobs import FIRST_POLL_PAUSE_S, max_remaining_s
from tests.unit.svc.fake_coordinator import DEPLOYMENT, WALLET, Answer, FakeCoordinator, failing, job

JOB = "0x" + "07" * 32
ROUTE = f"GET /v1/jobs/{JOB}"


async def test_job_wait_reports_each_state_once() -> None:
    states = ["queued", "queued", "in_progress", "in_progress", "completed"]
    coordinator = FakeCoordinator({ROUTE: [Answer(200, job(JOB, status)) for status in states]})
    seen: list[str] = []
    ended = await coordinator.client().jobs.wait(JOB, on_change=lambda job: seen.append(job.status))
    assert (ended.status, seen) == ("completed", ["queued", "in_progress", "completed"])
    pauses = [later.at - earlier.at for earlier, later in pairwise(coordinator.asked)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= 5


async def test_unknown_job_and_errors_are_waited_out() -> None:
    away = failing(503, "not_ready", retryable=True)
    coordinator = FakeCoordinator({ROUTE: [failing(404, "not_found"), *[away] * 9, Answer(200, job(JOB, "failed"))]})
    assert (await coordinator.client().jobs.wait(JOB)).status == "failed"


async def test_answer_with_another_job_is_rejected() -> None:
    other = job("0x" + "08" * 32, "completed", result_cid="bafyother")
    for lie in (other, {**other, "id": JOB}):
        coordinator = FakeCoordinator({ROUTE: [Answer(200, lie)]})
        with pytest.raises(InternalError, match="the coordinator returned job"):
            await coordinator.client().jobs.wait(JOB)


async def test_coordinator_that_restarts_behind_a_proxy_is_waited_out() -> None:
    coordinator = FakeCoordinator({ROUTE: [*[Answer(502, b"<html>")] * 9, Answer(200, job(JOB, "failed"))]})
    assert (await coordinator.client().jobs.wait(JOB)).status == "failed"


async def test_final_error_ends_the_wait() -> None:
    coordinator = FakeCoordinator({ROUTE: [failing(400, "invalid_request_error")]})
    with pytest.raises(InvalidRequest):
        await coordinator.client().jobs.wait(JOB)


@pytest.mark.parametrize("seconds", [30, 0])
async def test_wait_ends_at_its_timeout(seconds: float) -> None:
    coordinator = FakeCoordinator({ROUTE: [Answer(200, job(JOB))]})
    began = anyio.current_time()
    with pytest.raises(WaitTimedOut):
        await coordinator.client().jobs.wait(JOB, timeout=seconds)
    assert anyio.current_time() - began == pytest.approx(seconds)


async def test_wait_lasts_as_long_as_the_job_can() -> None:
    claimed = job(JOB, "in_progress", in_progress_at=str(int(time.time()) - 600), sla_secs="3600")
    coordinator = FakeCoordinator({ROUTE: [Answer(200, claimed)]})
    began = anyio.current_time()
    with pytest.raises(WaitTimedOut):
        # The window is counted by the real clock, and the virtual clock runs ahead of it.
        with anyio.fail_after(3600 - 600 + 600 + 10):
            await coordinator.client().jobs.wait(JOB, timeout=None)
    assert anyio.current_time() - began == pytest.approx(3600, abs=10)


async def test_wait_for_a_job_is_capped() -> None:
    """A coordinator may report times that are centuries ahead."""
    longest = 2 * 86_400 + 600
    assert max_remaining_s(0, None, 86_400, 86_400) == longest
    assert [max_remaining_s(0, claimed_at, 10**10, 10**10) for claimed_at in (None, 10**10)] == [longest, longest]


async def test_cancellation_uses_the_coordinators_clock() -> None:
    answer = {"job_id": JOB, "tx_hash": "0x" + "cc" * 32}
    ahead = {"date": formatdate(time.time() + 800, usegmt=True)}
    coordinator = FakeCoordinator({f"POST /v1/jobs/{JOB}/cancel": [Answer(200, answer)]})
    coordinator.tell("GET /evm/chain", Answer(200, DEPLOYMENT, ahead))
    assert (await coordinator.client().cancel(JOB)).tx_hash == answer["tx_hash"]
    (asked,) = coordinator.to(f"POST /v1/jobs/{JOB}/cancel")
    assert asked.body["issued_at"] - time.time() == pytest.approx(800, abs=5)


async def test_invalid_job_id_is_not_requested() -> None:
    coordinator = FakeCoordinator()
    with pytest.raises(OrderRefused):
        await coordinator.client().jobs.get("0x12/../..")
    assert coordinator.asked == []


async def test_own_jobs_are_the_wallets_newest_first() -> None:
    coordinator = FakeCoordinator({"GET /evm/jobs": [Answer(200, {"jobs": []})]})
    assert await coordinator.client().jobs.mine() == []
    assert coordinator.asked[0].query == {
        "owner": hex_of(WALLET.address),
        "order": "newest",
        "limit": "100",
        "offset": "0",
    }


EVENTS = f"{ROUTE}/events"


STREAM = {"content-type": "text/event-stream"}


def message(status: str) -> bytes:
    return b'id: 1\nevent: any\ndata: {"status": "%s"}\n\n' % status.encode()


def stream(*statuses: str) -> Answer:
    """Return a stream that reports these statuses and then ends."""
    return Answer(200, b"retry: 10\nid: 1\n\n" + b"".join(map(message, statuses)), STREAM)


async def test_event_with_known_state_needs_no_read() -> None:
    states = ["queued", "in_progress", "completed"]
    coordinator = FakeCoordinator({ROUTE: [Answer(200, job(JOB, status)) for status in states]})
    coordinator.tell(EVENTS, lambda _: stream("queued", "in_progress"), lambda _: stream("completed"))
    ended = await coordinator.client().jobs.wait(JOB)
    assert ended.status == "completed"
    assert coordinator.asked[-1].at - coordinator.asked[0].at < 3  # woken by the event, not by a poll


@pytest.mark.parametrize("told", [True, False])
async def test_claim_is_read_only_for_a_listener(told: bool) -> None:
    coordinator = FakeCoordinator()
    looks: list[int] = []

    async def live() -> AsyncIterator[bytes]:
        for status in ("queued", "in_progress", "completed"):
            coordinator.tell(ROUTE, Answer(200, job(JOB, status)))
            yield message(status)
            await anyio.wait_all_tasks_blocked()
            looks.append(len(coordinator.to(ROUTE)))
        raise AssertionError("the end was not looked at")

    coordinator.tell(ROUTE, Answer(200, job(JOB, "queued")))
    coordinator.tell(EVENTS, Answer(200, live(), STREAM))
    ended = await coordinator.client().jobs.wait(JOB, on_change=(lambda _: None) if told else None)
    assert ended.status == "completed"
    assert (looks, len(coordinator.to(ROUTE))) == (([1, 2], 3) if told else ([1, 1], 2))


async def test_stream_event_during_a_pause_saves_a_read() -> None:
    coordinator = FakeCoordinator({ROUTE: [Answer(200, job(JOB)), Answer(200, job(JOB, "completed"))]})

    async def told() -> AsyncIterator[bytes]:
        yield message("queued")
        await anyio.sleep(20 * FIRST_POLL_PAUSE_S)
        yield message("completed")

    coordinator.tell(EVENTS, Answer(200, told(), STREAM))
    assert (await coordinator.client().jobs.wait(JOB)).status == "completed"
    first, second = (asked.at for asked in coordinator.to(ROUTE))
    assert second - first == pytest.approx(20 * FIRST_POLL_PAUSE_S)


async def test_event_is_believed_in_nothing() -> None:
    """The event says "completed", and the job is not."""
    coordinator = FakeCoordinator({ROUTE: [*[Answer(200, job(JOB))] * 9, Answer(200, job(JOB, "failed"))]})
    coordinator.tell(EVENTS, stream("completed"))
    assert (await coordinator.client().jobs.wait(JOB)).status == "failed"


@pytest.mark.parametrize(
    "answer",
    [failing(404, "not_found"), failing(429, "busy", retryable=True), Answer(502, b""), Answer(200, b"<html>")],
)
async def test_wait_without_events_polls_as_often_as_ever(answer: Answer) -> None:
    looks = []
    for told in (failing(404, "not_found"), answer):
        states = [*["queued"] * 9, "completed"]
        coordinator = FakeCoordinator({ROUTE: [Answer(200, job(JOB, status)) for status in states], EVENTS: [told]})
        began = anyio.current_time()
        await coordinator.client().jobs.wait(JOB)
        looks.append([asked.at - began for asked in coordinator.to(ROUTE)])
    assert looks[0] == pytest.approx(looks[1])
