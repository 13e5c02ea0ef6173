from tests.soak.risks import Risk, Run, hollow, least_of
from tests.soak.timeline import Span, Timeline


def run_of(minutes: float, *faults: str) -> Run:
    timeline = Timeline()
    for kind in faults:
        timeline.struck(Span(kind, 0.0, 1.0))
    return Run(timeline, minutes, promised=0, broadcasts=0)


def test_promise_never_at_risk_invalidates_the_run() -> None:
    (found,) = hollow([Risk("I4", "events taken back", 0, 1), Risk("I9", "leases", 7, 5), Risk("I3", "nonces", 0, 0)])
    assert found == "I4: 0 events taken back (at least 1): the run is hollow"


def test_effects_of_frequent_faults_must_occur() -> None:
    for faults, least in (((), 0), (("reorg",) * 3, 0), (("reorg", "rpc_hang", *("reorg",) * 3), 1)):
        assert least_of(run_of(3, *faults))["events taken back"] == least
