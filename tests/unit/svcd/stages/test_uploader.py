"""The uploader alone: how each answer affects a result that is uploaded before its settle, and when."""

import io
from collections.abc import Awaitable, Callable

import pytest
import trio

from svcd.base.end_reasons import WorkFailed
from svcd.coordinator.outcomes import CoordinatorRefusal, Uploaded, UploadOutcome
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import SealedJob
from svcd.stages.uploader import Uploader, needs_upload
from tests.unit.svcd.stages.settles import AWAY, CID, SLA, World, held, sealed

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
    assert world.times == [0.0, 1.0, 3.0]
    in_vain = World([trouble])
    assert await failure_of(in_vain, window_ends_at=35.0) in (
        "settle_transport_error",
        "session_http_502",
        "settle_http_401",
    )
    assert in_vain.times == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0]


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
    assert world.times == [0.0]


async def test_upload_continues_in_the_new_claims_window() -> None:
    world = World([AWAY, Uploaded(CID)], claimed_at=50.0)
    await trio.sleep(10)
    await uploading(world)(sealed(held(sla_secs=60, window_ends_at=0)))
    [_, (how, due, again, *_)] = world.ends
    assert (how, due, again.window_ends_at - world.began) == ("to settle", 110.0, 110.0)
    assert [give_up_at for *_, give_up_at, _ in world.sent] == [10.0, 110.0]
