from collections.abc import Awaitable, Callable

import pytest
import trio

from svcd.backends.attempts import AttemptPolicy, BackendActivity, TryAgain
from svcd.base import metrics
from svcd.base.end_reasons import WorkFailed
from svcd.journal.work import WorkOutput
from tests.support.fakes.provider_work import work_on

OUTPUT = WorkOutput("done", 1)


def failing(*troubles: Exception) -> Callable[[BackendActivity], Awaitable[WorkOutput]]:
    """Return attempts that raise these errors in turn, and then succeed."""
    waiting = list(troubles)

    async def attempt(_: BackendActivity) -> WorkOutput:
        await trio.lowlevel.checkpoint()
        if waiting:
            raise waiting.pop(0)
        return OUTPUT

    return attempt


async def test_attempts_repeat_with_growing_waits() -> None:
    retried = metrics.backend_retries.labels("counted")
    before = retried._value.get()
    began = trio.current_time()
    output = await AttemptPolicy(3, 1, 60).run(work_on(model="counted"), failing(TryAgain("a"), TryAgain("b")))
    assert output is OUTPUT
    assert 3 <= trio.current_time() - began <= 3 * 1.25
    assert retried._value.get() - before == 2


async def test_the_last_failure_is_exhaustion_and_the_backends_fault() -> None:
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(2, 1, 60).run(work_on(), failing(TryAgain("a"), TryAgain("b")))
    assert (failed.value.reason, failed.value.backend_fault) == ("backend_exhausted", True)
    assert "b" in failed.value.detail


async def test_a_wait_that_the_server_asked_for_is_kept_to_the_second() -> None:
    began = trio.current_time()
    await AttemptPolicy(2, 1, 60).run(work_on(), failing(TryAgain("busy", retry_after_s=90)))
    assert trio.current_time() - began == 90


async def test_a_wait_that_would_end_past_the_deadline_is_not_begun() -> None:
    began = trio.current_time()
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(2, 1, 60).run(work_on(deadline=began + 90), failing(TryAgain("busy", retry_after_s=90)))
    assert (failed.value.reason, trio.current_time()) == ("deadline_wait", began)


@pytest.mark.parametrize(
    ("before", "alive", "fault"),
    [([], True, False), ([], False, True), ([TryAgain("first")], True, True)],
    ids=["long work", "silence", "after a failure"],
)
async def test_an_attempt_under_way_at_the_deadline_is_cancelled(
    before: list[Exception], alive: bool, fault: bool
) -> None:
    waiting = list(before)

    async def attempt(activity: BackendActivity) -> WorkOutput:
        if waiting:
            raise waiting.pop()
        activity.has_reacted = alive
        await trio.sleep_forever()
        return OUTPUT

    deadline = trio.current_time() + 30
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(4, 1, 60).run(work_on(deadline=deadline), attempt)
    assert (failed.value.reason, failed.value.backend_fault, trio.current_time()) == ("deadline_wait", fault, deadline)


async def test_a_failure_that_no_attempt_would_mend_ends_it_at_once() -> None:
    with pytest.raises(WorkFailed) as failed:
        await AttemptPolicy(4, 1, 60).run(work_on(), failing(WorkFailed("backend_error", "no")))
    assert failed.value.detail == "no"
