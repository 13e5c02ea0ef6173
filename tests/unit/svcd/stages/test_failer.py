"""The failer alone: how it handles each answer and each look at the job, and when."""

from collections.abc import Awaitable, Callable

import pytest

from svcd.coordinator.outcomes import ChainRefused, OpOutcome
from svcd.journal.held_job import FailingJob
from svcd.stages.claimer import STALE_OP
from svcd.stages.failer import Failer
from tests.unit.svcd.stages.settles import AWAY, MINED, REVERTED, World, held


def failing(world: World) -> Callable[[FailingJob], Awaitable[None]]:
    return Failer(**world.collaborators("coordinator", "signer", "clock", "lookup", "pipeline")).step


async def test_fail_is_sent_again_until_it_is_taken() -> None:
    world, job = World([AWAY, MINED]), held()
    await failing(world)(FailingJob(job, "backend_error"))
    assert world.ends == [("failed", job, "backend_error")]
    assert world.times == [0.0, 1.0]
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
    assert world.times == [0.0]


async def test_fail_that_is_stale_sets_the_clock_and_is_sent_again() -> None:
    world, job = World([STALE_OP, STALE_OP, REVERTED, MINED]), held()
    await failing(world)(FailingJob(job, "why"))
    assert (world.stale, world.times) == (2, [0.0, 1.0, 3.0, 7.0])
    assert world.ends == [("failed", job, "why")]


@pytest.mark.parametrize(("window_ends_at", "last"), [(90.0, 61.0), (0.0, 31.0)])
async def test_fail_is_retried_until_the_sla_ends(window_ends_at: float, last: float) -> None:
    world, job = World([AWAY], ["unknown"]), held(window_ends_at=window_ends_at)
    await failing(world)(FailingJob(job, "why"))
    assert world.ends == [("left", job, "why")]
    assert world.times == [when for when in (0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0) if when <= last]
    until = max(window_ends_at, 60.0)
    assert [give_up_at for _, _, give_up_at, _ in world.sent] == [min(until, when + 60.0) for when in world.times]


async def test_last_fail_attempt_is_before_the_end() -> None:
    world = World([AWAY], ["unknown"])
    await failing(world)(FailingJob(held(window_ends_at=61.0), "why"))
    assert world.times == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
