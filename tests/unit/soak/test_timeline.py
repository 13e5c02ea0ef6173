from tests.soak.timeline import Done, Span, Timeline


def test_ended_round_leaves_sums_and_the_newest_faults() -> None:
    timeline = Timeline()
    timeline.began -= 1_000
    for at in (10.0, 990.0):
        timeline.struck(Span("reorg", at, at + 1))
        timeline.add(Done("file", at, 1.0, "read back"))
    timeline.end_round()
    assert (len(timeline.done), [span.start for span in timeline.faults]) == (0, [990.0])
    assert timeline.outcome_counts() == {"file": {"read back": 2}}
    assert timeline.fault_counts() == {"reorg": 2}


def test_complaints_are_bounded_and_the_others_counted() -> None:
    timeline = Timeline()
    for n in range(1_000):
        timeline.complain(f"I1: {n}")
    assert len(timeline.complaints) + timeline.as_json()["complaints_unnamed"] == 1_000
    assert len(timeline.complaints) <= 200
