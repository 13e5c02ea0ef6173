"""The uploader and the failer alone: how each answer affects a job, and when."""

import io
from collections.abc import Awaitable, Callable

import pytest
import trio

from svcd.base.end_reasons import WorkFailed
from svcd.coordinator.outcomes import ChainRefused, CoordinatorRefusal, OpOutcome, Uploaded, UploadOutcome
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import FailingJob, SealedJob
from svcd.stages.claimer import STALE_OP
from svcd.stages.failer import Failer
from svcd.stages.uploader import Uploader, needs_upload
from tests.unit.svcd.stages.settles import AWAY, CID, MINED, REVERTED, SLA, World, held, sealed

FORGOTTEN = CoordinatorRefusal(401, "invalid_session")


def uploading(world: World) -> Callable[[SealedJob], Awaitable[None]]:
    return Uploader(**world.collaborators("coordinator", "lookup", "pipeline")).step


async def failure_of(world: World, window_ends_at: float = SLA) -> str:
    with pytest.raises(WorkFailed) as failure:
        await uploading(world)(sealed(held(window_ends_at=window_ends_at)))
    assert world.ends == []
    return failure.value.reason


async def test_oversized_result_is_uploaded_before_its_settle() -> None:
    assert [needs_upload(length) for length in (15_679_488, 15_679_489)] == [False, True]


async def test_file_of_a_result_is_closed_after_its_upload() -> None:
    world = World([Uploaded(CID)], kept=(kept := io.BytesIO(b"kept")))
    await uploading(world)(sealed(held()))
    assert kept.closed


async def test_result_that_was_uploaded_is_settled_by_its_name() -> None:
    world, job = World([Uploaded(CID)]), held()
    await uploading(world)(sealed(job))
    assert world.sent == [(0.0, {"uploaded": b"kept"}, SLA, True)]
    assert world.ends == [("uploaded", CID), ("to settle", SLA, job, 5, CID)]


@pytest.mark.parametrize("trouble", [AWAY, SignInRefused(None, "x"), SignInRefused(502, "x"), FORGOTTEN])
async def test_upload_is_retried_until_the_sla_ends(trouble: UploadOutcome) -> None:
    world = World([trouble, trouble, Uploaded(CID)])
    await uploading(world)(sealed(held()))
    assert world.sent_at == [0.0, 1.0, 3.0]
    in_vain = World([trouble])
    assert await failure_of(in_vain, window_ends_at=35.0) in (
        "settle_transport_error",
        "session_http_502",
        "settle_http_401",
    )
    assert in_vain.sent_at == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0]


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (CoordinatorRefusal(403, "x"), "settle_rejected"),
        (CoordinatorRefusal(413, None), "settle_result_too_large"),
        (CoordinatorRefusal(500, None), "settle_http_500"),
        (SignInRefused(403, "not_registered"), "session_http_403"),
        (Uploaded(None), "settle_upload_invalid"),
    ],
)
async def test_permanent_upload_refusal_ends_the_job(refusal: UploadOutcome, reason: str) -> None:
    world = World([refusal])
    assert await failure_of(world) == reason
    assert world.sent_at == [0.0]


async def test_upload_continues_in_the_new_claims_window() -> None:
    world = World([AWAY, Uploaded(CID)], claimed_at=50.0)
    await trio.sleep(10)
    await uploading(world)(sealed(held(sla_secs=60, window_ends_at=0)))
    [_, (how, due, again, *_)] = world.ends
    assert (how, due, again.window_ends_at - world.began) == ("to settle", 110.0, 110.0)
    assert [give_up_at for *_, give_up_at, _ in world.sent] == [10.0, 110.0]


def failing(world: World) -> Callable[[FailingJob], Awaitable[None]]:
    return Failer(**world.collaborators("coordinator", "signer", "clock", "lookup", "pipeline")).step


async def test_fail_is_sent_again_until_it_is_taken() -> None:
    world, job = World([AWAY, MINED]), held()
    await failing(world)(FailingJob(job, "backend_error"))
    assert world.ends == [("failed", job, "backend_error")]
    assert world.sent_at == [0.0, 1.0]
    assert world.sent[1][1] == {"job": job.job.job_id, "at": 1}  # signed again
    assert world.asked == [("after", AWAY, job)]


@pytest.mark.parametrize(
    ("outcome", "standing", "end"),
    [
        (REVERTED, "settled", ("settled", None)),
        (AWAY, "ended", ("failed", "why")),
        (ChainRefused("NotTheClaimer"), "held", ("left", "why")),
    ],
)
async def test_fail_ends_with_what_the_chain_says_of_the_job(
    outcome: OpOutcome, standing: str, end: tuple[str, str | None]
) -> None:
    world, job = World([outcome], [standing]), held()
    await failing(world)(FailingJob(job, "why"))
    assert world.ends == [(end[0], job, end[1])]
    assert world.sent_at == [0.0]


async def test_fail_that_is_stale_sets_the_clock_and_is_sent_again() -> None:
    world, job = World([STALE_OP, STALE_OP, REVERTED, MINED]), held()
    await failing(world)(FailingJob(job, "why"))
    assert (world.stale, world.sent_at) == (2, [0.0, 1.0, 3.0, 7.0])
    assert world.ends == [("failed", job, "why")]


@pytest.mark.parametrize(("window_ends_at", "last"), [(90.0, 61.0), (0.0, 31.0)])
async def test_fail_is_retried_until_the_sla_ends(window_ends_at: float, last: float) -> None:
    world, job = World([AWAY], ["unknown"]), held(window_ends_at=window_ends_at)
    await failing(world)(FailingJob(job, "why"))
    assert world.ends == [("left", job, "why")]
    assert world.sent_at == [when for when in (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0) if when <= last]
    until = max(window_ends_at, 60.0)
    assert [give_up_at for _, _, give_up_at, _ in world.sent] == [min(until, when + 60.0) for when in world.sent_at]


async def test_last_fail_attempt_is_before_the_end() -> None:
    world = World([AWAY], ["unknown"])
    await failing(world)(FailingJob(held(window_ends_at=61.0), "why"))
    assert world.sent_at == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
