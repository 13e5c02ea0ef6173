import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svcd.backends.backend import OnDelta
from svcd.backends.breaker import FAULTS_TO_OPEN, Breaker, probe_while_open
from svcd.journal.work import ModelWork, WorkOutput


@pytest.fixture
def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAULTS_TO_OPEN):
        breaker.record_failure(backend_fault=True)
    return breaker


def test_the_third_fault_in_a_row_opens_it_and_no_earlier() -> None:
    breaker = Breaker()
    states = []
    for _ in range(3):
        breaker.record_failure(backend_fault=True)
        states.append(breaker.is_open)
    assert states == [False, False, True]


def test_success_between_faults_resets_the_count() -> None:
    breaker = Breaker()
    for fault in (True, True, None, True, True):
        breaker.record_success() if fault is None else breaker.record_failure(fault)
    assert not breaker.is_open


def test_client_faults_do_not_affect_the_breaker() -> None:
    breaker = Breaker()
    for fault in (False, False, False, True, True, False):
        breaker.record_failure(fault)
    assert not breaker.is_open
    breaker.record_failure(backend_fault=True)
    assert breaker.is_open


def test_jobs_that_end_while_it_is_open_do_not_close_it(opened: Breaker) -> None:
    opened.record_success()
    assert opened.is_open


def test_one_fault_after_recovery_reopens_for_longer(opened: Breaker) -> None:
    first = opened.backoff_s
    opened.record_probe(is_up=True)
    assert not opened.is_open
    opened.record_failure(backend_fault=True)
    assert opened.is_open
    assert opened.backoff_s == 2 * first


def test_a_success_after_a_good_look_forgets_the_waits(opened: Breaker) -> None:
    first = opened.backoff_s
    opened.record_probe(is_up=True)
    opened.record_success()
    opened.record_failure(backend_fault=True)
    assert not opened.is_open
    assert opened.backoff_s == first


class Looks:
    """A backend that answers health checks from a list. None is a check that hangs."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)
        self.at: list[float] = []

    async def run(self, work: ModelWork, on_delta: OnDelta | None = None) -> WorkOutput:
        raise AssertionError("a look runs nothing")

    async def is_up(self) -> bool:
        self.at.append(trio.current_time())
        answer = self.answers.pop(0)
        if answer is None:
            await trio.sleep_forever()
        return bool(answer)


async def test_breaker_checks_less_often_until_recovery(opened: Breaker) -> None:
    backend = Looks(False, None, True)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe_while_open, opened, backend, "m")
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    assert [at - began for at in backend.at] == [5, 15, 50]  # the second check hung for 15 s
    assert not opened.is_open


async def test_each_opening_is_watched() -> None:
    backend, breaker = Looks(True, True), Breaker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probe_while_open, breaker, backend, "m")
        await wait_all_tasks_blocked()
        for _ in range(2):
            for _ in range(FAULTS_TO_OPEN):
                breaker.record_failure(backend_fault=True)
            await trio.sleep(60)
            assert not breaker.is_open
            breaker.record_success()
        nursery.cancel_scope.cancel()
    assert len(backend.at) == 2
