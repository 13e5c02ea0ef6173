from tests.soak.faults.kinds import KINDS
from tests.soak.timeline import Done, Span, Timeline
from tests.soak.useful import EXPLAINED, USEFUL, too_little, unexplained


def run_of(*done: Done, faults: tuple[Span, ...] = ()) -> Timeline:
    timeline = Timeline()
    for span in faults:
        timeline.struck(span)
    for one in done:
        timeline.add(one)
    return timeline


def all_done(**instead: str) -> Timeline:
    return run_of(
        *(Done(what, 10.0, 1.0, instead.get(what, min(work.done))) for what, work in USEFUL.items() for _ in range(5))
    )


def test_kind_of_work_that_is_never_done_is_below_its_floor() -> None:
    assert too_little(all_done(), 3) == []
    (found,) = too_little(all_done(file="expired"), 3)
    assert found.startswith("I13: file: 0 finished")
    assert "'expired': 5" in found


def test_failure_is_explained_by_a_recent_fault() -> None:
    failed = Done("open job", 100.0, 20.0, "store_unavailable")
    assert unexplained(run_of(failed, faults=(Span("store_killed", 60.0, 70.0),))) == []
    assert len(unexplained(run_of(failed))) == 1
    assert (
        len(unexplained(run_of(failed, faults=(Span("store_killed", 1.0, 2.0), Span("store_trouble", 101, 102))))) == 1
    )


def test_failure_is_not_explained_by_another_fault() -> None:
    failed = Done("open job", 100.0, 20.0, "store_unavailable")
    assert len(unexplained(run_of(failed, faults=(Span("reorg", 90.0, 90.0),)))) == 1


def test_answers_of_two_coordinators_need_separate_causes() -> None:
    twice = Done("job posted twice", 50.0, 1.0, "503 relayer_funds / 503 store_unavailable")
    empty, store = Span("relayer_empty", 49.0, 52.0), Span("store_killed", 49.0, 52.0)
    assert len(unexplained(run_of(twice, faults=(empty,)))) == 1
    assert unexplained(run_of(twice, faults=(empty, store))) == []


def test_every_fault_explains_something() -> None:
    assert set().union(*EXPLAINED.values()) - {"idle claim"} == set(KINDS)
