"""The settler alone: how it handles each answer and each look at the job, and when."""

import io

import pytest
import trio

from common.scalars import base64_of
from svcd.base.end_reasons import WorkFailed
from svcd.coordinator.outcomes import ChainRefused, CoordinatorRefusal, OpOutcome
from svcd.coordinator.sessions import SignInRefused
from svcd.journal.held_job import CLAIM_LIFETIME_S, SealedJob
from svcd.stages.claimer import STALE_OP
from svcd.stages.settler import Settler
from tests.unit.svcd.stages.settles import (
    AWAY,
    CID,
    EXPIRES,
    MINED,
    NOT_CLAIMED,
    PENDING,
    REVERTED,
    SLA,
    UNKNOWN_RESULT,
    World,
    held,
    sealed,
)


async def settle(world: World, job: SealedJob) -> None:
    """Run the settler for one job, with the scripted answers of `world`."""
    collaborators = world.collaborators("coordinator", "signer", "clock", "lookup", "timings", "pipeline")
    await Settler(**collaborators).step(job)


async def failure_of(world: World, job: SealedJob) -> str:
    with pytest.raises(WorkFailed) as failure:
        await settle(world, job)
    assert world.ends == []
    return failure.value.reason


async def test_settle_has_the_result_and_is_sent_once_per_round() -> None:
    await trio.sleep(100)
    world, job = World([MINED], takes=2.0), held()
    await settle(world, sealed(job))
    [(_, op, give_up_at, resend)] = world.sent
    assert op == {"job": job.job.job_id, "tok": 5, "at": 0, "result": base64_of(b"result")}
    assert (give_up_at, resend) == (SLA, False)
    assert world.ends == [("settled", job, 3.0)]
    assert (world.relayed_in, world.asked, world.stale) == ([2.0], [], 0)


async def test_settle_of_a_job_run_ahead_is_not_timed() -> None:
    world = World([MINED], takes=2.0)
    await settle(world, sealed(held(ahead=True)))
    assert world.relayed_in == []


@pytest.mark.parametrize("kept", [b"kept", io.BytesIO(b"kept")], ids=["row", "file"])
async def test_result_of_an_earlier_run_is_read_from_the_journal(kept: bytes | io.BytesIO) -> None:
    world = World([MINED], kept=kept)
    await settle(world, sealed(held(), result=None))
    assert world.sent[0][1]["result"] == base64_of(b"kept")
    assert isinstance(kept, bytes) or kept.closed


async def test_lapsed_upload_is_repeated() -> None:
    world, job = World([UNKNOWN_RESULT]), held()
    await settle(world, sealed(job, result=None, result_cid=CID))
    assert world.sent[0][1] == {"job": job.job.job_id, "tok": 5, "at": 0, "result_cid": CID}
    assert world.ends == [("to upload", SLA, job, 5, None)]
    assert await failure_of(World([UNKNOWN_RESULT]), sealed(held())) == "settle_http_400"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ChainRefused("TooManyUnits"), "settle_TooManyUnits"),
        (CoordinatorRefusal(403, "x"), "settle_rejected"),
        (CoordinatorRefusal(413, None), "settle_result_too_large"),
        (CoordinatorRefusal(500, None), "settle_http_500"),
        (SignInRefused(403, "not_registered"), "session_http_403"),
        (SignInRefused(500, "x"), "session_http_500"),
    ],
)
async def test_permanent_refusal_ends_the_job(outcome: OpOutcome, reason: str) -> None:
    world, job = World([outcome]), held()
    assert await failure_of(world, sealed(job)) == reason
    assert world.sent_at == [0.0]
    assert world.asked == [("after", outcome, job)]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (CoordinatorRefusal(401, "invalid_session"), "settle_http_401"),
        (CoordinatorRefusal(501, None), "settle_http_501"),
        (SignInRefused(502, "x"), "session_http_502"),
        (SignInRefused(None, "x"), "settle_transport_error"),
        (AWAY, "settle_transport_error"),
        (PENDING, "settle_http_504"),
        (STALE_OP, "settle_StaleOp"),
        (REVERTED, "settle_reverted"),
    ],
)
async def test_temporary_failure_is_retried_until_the_sla_ends(outcome: OpOutcome, reason: str) -> None:
    world = World([outcome])
    assert await failure_of(world, sealed(held(window_ends_at=35.0))) == reason
    assert world.sent_at == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0]  # at 25 s, the next look would fall on the end of the SLA
    assert world.stale == (5 if outcome == STALE_OP else 0)


@pytest.mark.parametrize("outcome", [AWAY, PENDING, REVERTED, CoordinatorRefusal(400, None)])
async def test_settled_job_counts_whatever_was_answered(outcome: OpOutcome) -> None:
    world, job = World([outcome], ["settled"]), held()
    await settle(world, sealed(job))
    assert world.ends == [("settled", job, 3.0)]
    assert len(world.sent) == 1


async def test_stale_settle_is_signed_again() -> None:
    world = World([STALE_OP, AWAY, MINED])
    await settle(world, sealed(held()))
    assert (world.sent_at, world.signed_at) == ([0.0, 1.0, 3.0], [0, 1, 1])
    slow = World([AWAY, AWAY, AWAY, MINED], takes=249.0)
    await settle(slow, sealed(held()))
    assert (slow.sent_at, slow.signed_at) == ([0.0, 250.0, 501.0, 754.0], [0, 0, 501, 501])
    edge = World([AWAY, AWAY, AWAY, MINED], takes=248.5)
    await settle(edge, sealed(held()))
    assert (edge.sent_at, edge.signed_at) == ([0.0, 249.5, 500.0, 752.5], [0, 0, 0, 752])


@pytest.mark.parametrize("reason", ["NotClaimed", "UnknownJob"])
async def test_reorged_claim_is_awaited_while_it_can_return(reason: str) -> None:
    world, job = World([ChainRefused(reason)], ["unknown"]), held(sla_secs=SLA, window_ends_at=SLA)
    assert await failure_of(world, sealed(job)) == f"settle_{reason}"
    last = world.sent_at[-1]
    assert CLAIM_LIFETIME_S <= last < CLAIM_LIFETIME_S + 10  # claimed at 0
    # While the claim may be mined again, one look is enough. After that, wait for the index.
    assert {kind for kind, *_ in world.asked[:-1]} == {"of"}
    assert world.asked[-1] == ("after", ChainRefused(reason), job)


async def test_job_whose_claim_is_gone_is_reclaimed_and_settled() -> None:
    """The chain rejected the claim when it was sent again, so waiting alone would not help."""
    await trio.sleep(100)
    world, job = World([*[NOT_CLAIMED] * 5, AWAY, *[NOT_CLAIMED] * 2, STALE_OP, NOT_CLAIMED, MINED], ["open"]), held()
    await settle(world, sealed(job))
    assert world.claims == [
        (25.0, 115.0, {"claimed": job.job.job_id, "at": 25}),
        (55.0, 145.0, {"claimed": job.job.job_id, "at": 55}),
    ]
    assert world.sent_at == [0.0, 1.0, 3.0, 7.0, 15.0, 25.0, 25.0, 35.0, 45.0, 55.0, 55.0]
    [(how, settled, started)] = world.ends
    assert (how, settled.job, started, world.stale) == ("settled", job.job, 3.0, 1)


async def test_stale_second_claim_corrects_the_clock() -> None:
    world = World([*[NOT_CLAIMED] * 5, STALE_OP, MINED], ["open"])
    await settle(world, sealed(held()))
    assert ([when for when, *_ in world.claims], world.stale) == ([25.0], 1)


@pytest.mark.parametrize(("confirmed", "claims"), [(False, []), (True, [25.0])])
async def test_job_run_ahead_is_reclaimed_after_its_claims_block(*, confirmed: bool, claims: list[float]) -> None:
    """Before that, the first claim is pending, and its answer decides."""
    world, job = World([*[NOT_CLAIMED] * 8, MINED], ["open"]), held(ahead=True)
    if job.pending_claim is not None and confirmed:
        job.pending_claim.confirm()
    await settle(world, sealed(job))
    assert [when for when, *_ in world.claims] == claims


async def test_claim_that_may_return_is_not_resent() -> None:
    world = World([*[NOT_CLAIMED] * 8, MINED], ["open", "open", "open", "open", "held", "open", "open", "held"])
    await settle(world, sealed(held()))
    assert world.claims == []


async def test_open_job_ends_at_its_expiry() -> None:
    world = World([NOT_CLAIMED], ["open"])
    job = held(sla_secs=60, window_ends_at=60)
    assert EXPIRES > CLAIM_LIFETIME_S
    assert await failure_of(world, sealed(job)) == "settle_NotClaimed"
    assert [when for when, *_ in world.claims] == [25.0 + 30 * n for n in range(120)]
    assert world.sent_at[-1] == EXPIRES - 5.0  # the next look would come after the expiry
    pending = World([PENDING], ["open"])
    assert await failure_of(pending, sealed(held(sla_secs=60, window_ends_at=60))) == "settle_http_504"
    assert pending.sent_at[-1] == world.sent_at[-1]


async def test_each_claim_starts_its_own_window() -> None:
    """The window counts from when the job was last seen open, because the next claim is in a later block."""
    world = World([*[NOT_CLAIMED] * 12, AWAY], [*["open"] * 10, "held"])
    assert await failure_of(world, sealed(held(sla_secs=60, window_ends_at=30))) == "settle_transport_error"
    settles = [(when, give_up_at) for when, op, give_up_at, _ in world.sent if "claimed" not in op]
    assert settles[:3] == [(0.0, 30.0), (1.0, 60.0), (3.0, 61.0)]
    assert settles[-1] == (115.0, 125.0)


async def test_unseen_remined_claim_has_its_own_window() -> None:
    """One look took longer than the first window."""
    world = World([AWAY, AWAY, MINED], ["unknown", "held"], claimed_at=50.0)
    await settle(world, sealed(held(sla_secs=60, window_ends_at=4)))
    assert [give_up_at for *_, give_up_at, _ in world.sent] == [4.0, 4.0, 110.0]
    assert [how for how, *_ in world.ends] == ["settled"]


async def test_open_job_does_not_shorten_the_window() -> None:
    world = World([AWAY, MINED], ["open"])
    await settle(world, sealed(held(sla_secs=60, window_ends_at=90)))
    assert [give_up_at for *_, give_up_at, _ in world.sent] == [90.0, 90.0]


@pytest.mark.parametrize("standing", ["open", "held"])
async def test_reverted_settle_is_signed_again(standing: str) -> None:
    """The index shows the job as open, or still as claimed because the index lags a reorg."""
    world = World([REVERTED, REVERTED, MINED], [standing])
    await settle(world, sealed(held()))
    assert (world.sent_at, world.signed_at) == ([0.0, 1.0, 3.0], [0, 1, 3])


async def test_lapsed_upload_is_repeated_in_the_new_window() -> None:
    world, job = World([NOT_CLAIMED, UNKNOWN_RESULT], ["open"]), held(sla_secs=60, window_ends_at=60)
    await trio.sleep(5)
    await settle(world, sealed(job, result=None, result_cid=CID))
    [(how, due, again, *_)] = world.ends
    assert (how, due, again.window_ends_at - world.began) == ("to upload", 65.0, 65.0)


@pytest.mark.parametrize("outcome", [ChainRefused("TooManyUnits"), CoordinatorRefusal(403, "x")])
async def test_refused_result_is_final_for_an_open_job(outcome: OpOutcome) -> None:
    world = World([outcome], ["open"])
    assert await failure_of(world, sealed(held())) in ("settle_TooManyUnits", "settle_rejected")
    assert world.sent_at == [0.0]


async def test_claim_is_dead_at_the_second_at_which_its_signature_ends() -> None:
    world = World([ChainRefused("NotClaimed")], takes=CLAIM_LIFETIME_S)
    assert await failure_of(world, sealed(held())) == "settle_NotClaimed"
    assert world.sent_at == [0.0]


async def test_job_reported_open_by_a_lagging_index_is_settled() -> None:
    """The settle succeeded, so the chain rejects another."""
    world = World([NOT_CLAIMED], ["open", "open", "settled"])
    await settle(world, sealed(held()))
    assert ([how for how, *_ in world.ends], world.sent_at) == (["settled"], [0.0, 1.0, 3.0])


async def test_open_job_with_a_dead_claim_continues() -> None:
    """Any provider may claim the job."""
    world = World([NOT_CLAIMED, MINED], ["open"], takes=CLAIM_LIFETIME_S)
    await settle(world, sealed(held()))
    assert ([kind for kind, *_ in world.asked], len(world.ends)) == (["after"], 1)


async def test_what_may_pass_ends_early_when_the_job_has_ended() -> None:
    world = World([ChainRefused("NotClaimed")], ["unknown", "ended"])
    assert await failure_of(world, sealed(held())) == "settle_NotClaimed"
    assert len(world.sent) == 2
