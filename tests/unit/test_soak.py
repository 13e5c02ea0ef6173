"""The checks of the soak, applied to histories and runs made by hand."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from common.cid import cid_of, parse_cid
from tests.soak.faults.schedule import KINDS
from tests.soak.planted.__main__ import PATCHES, PLANTED, names
from tests.soak.resources import Look, ProcessUse, TableSize, growth
from tests.soak.risks import Risk, Run, hollow, least_of
from tests.soak.sampling import ChainHistory
from tests.soak.timeline import Done, Span, Timeline
from tests.soak.useful import EXPLAINED, USEFUL, too_little, unexplained
from tests.soak.verdict import INVARIANTS
from tests.support.faults.tcp_proxy import with_other_cids
from tests.support.invariants.liveness import liveness_violations
from tests.support.invariants.market_log import MarketLog, Told
from tests.support.invariants.replay import Replayed
from tests.support.invariants.transfers import transfer_violations
from tests.support.planted import plant

JOB, OWNER, OPERATOR, TREASURY, REGISTRY = (bytes([n]) * 32 for n in range(1, 6))
AMOUNT: Final = 3_000 + 75 + 2_000  # 1000 units in at 1, 1000 out at 2; 2.5 % and the gas fee
POSTED: Final[Mapping[str, Any]] = {
    **{"jobId": JOB, "owner": OWNER, "modelId": 1, "c": b"c", "slaSecs": 60, "rateIn": 1_000_000, "rateOut": 2_000_000},
    **{"unitsIn": 1000, "unitsOut": 1000, "designated": 0, "expiresAt": 500, "feeBps": 250, "gasFee": 2_000},
    **{"taskCid": "cid", "paySig": b"sig"},
}
REGISTERED: Final = ("ProviderRegistered", {"providerId": 7, "operator": OPERATOR})
CLAIMED: Final = ("JobClaimed", {"jobId": JOB, "providerId": 7, "claimedAt": 100})
SETTLED: Final = (
    "JobSettled",
    {
        **{"jobId": JOB, "providerId": 7, "completionTok": 500, "cost": 2_000, "treasuryShare": 2_050},
        **{"refund": AMOUNT - 2_000 - 2_050, "resultCid": "result"},
    },
)
FAILED: Final = ("JobFailed", {"jobId": JOB, "providerId": 7})
PAID_IN: Final = (OWNER, REGISTRY, AMOUNT)
PAID_OUT: Final = ((REGISTRY, OPERATOR, 2_000), (REGISTRY, OWNER, AMOUNT - 4_050))

Event = tuple[str, Mapping[str, Any]]
Transfer = tuple[bytes, bytes, int]


def history(
    *events: Event,
    transfers: tuple[Transfer, ...] = (),
    ended: int = 150,
    now: int = 200,
    pauses: tuple[tuple[int, int], ...] = (),
) -> MarketLog:
    """Return a history. All events except the last are at second 100."""
    places = count()
    told = [Told(name, values, 1, next(places), 100, "0x") for name, values in events[:-1]]
    told += [Told(name, values, 2, next(places), ended, "0x") for name, values in events[-1:]]
    moved = [Told("Transfer", {"from": a, "to": b, "value": n}, 2, 0, 100, "0x") for a, b, n in transfers]
    return MarketLog(told, moved, 2, now, pauses)


def job(index: Replayed) -> Mapping[str, Any]:
    return index.tables["jobs"][JOB,]


def test_job_ends_within_its_window_or_a_little_later() -> None:
    claimed = (REGISTERED, ("JobPosted", POSTED), CLAIMED)
    assert liveness_violations(history(*claimed, FAILED, ended=170), grace=10) == []
    (late,) = liveness_violations(history(*claimed, FAILED, ended=171), grace=10)
    assert "ended 11 s after its window" in late
    assert liveness_violations(history(*claimed, now=170), grace=10) == []
    (held,) = liveness_violations(history(*claimed, now=171), grace=10)
    assert "still claimed 11 s after its window" in held


def test_pauses_of_the_chain_extend_a_jobs_time() -> None:
    claimed = (REGISTERED, ("JobPosted", POSTED), CLAIMED)
    for pauses, extended in [(((100, 300),), 200), (((169, 200), (200, 300)), 131), (((40, 99), (170, 300)), 0)]:
        assert liveness_violations(history(*claimed, FAILED, ended=170 + extended, pauses=pauses), grace=10) == []
        (late,) = liveness_violations(history(*claimed, FAILED, ended=171 + extended, pauses=pauses), grace=10)
        assert late.startswith("I13: ")


@pytest.mark.parametrize(
    ("end", "transfers"),
    [(SETTLED, (PAID_IN, *PAID_OUT)), (FAILED, (PAID_IN, (REGISTRY, OWNER, AMOUNT)))],
    ids=["settled", "failed"],
)
def test_token_transfers_match_each_partys_dues(end: Event, transfers: tuple[Transfer, ...]) -> None:
    events = (REGISTERED, ("JobPosted", POSTED), CLAIMED, end)
    assert transfer_violations(history(*events, transfers=transfers), REGISTRY) == []
    for place, (sender, to, amount) in enumerate(transfers):
        one_less = (*transfers[:place], (sender, to, amount - 1), *transfers[place + 1 :])
        found = transfer_violations(history(*events, transfers=one_less), REGISTRY)
        # the total is wrong as well if the registry collected nothing for the job
        assert len(found) == 1 + (to == REGISTRY)
        assert all(line.startswith("I5: ") for line in found)


def test_refused_payout_is_due_again_after_withdrawal() -> None:
    credited = ("PayoutCredited", {"jobId": JOB, "party": OWNER, "amount": AMOUNT})
    events = (REGISTERED, ("JobPosted", POSTED), CLAIMED, FAILED, credited)
    assert transfer_violations(history(*events, transfers=(PAID_IN,)), REGISTRY) == []
    withdrawn = (*events, ("CreditWithdrawn", {"party": OWNER, "amount": AMOUNT}))
    assert len(transfer_violations(history(*withdrawn, transfers=(PAID_IN,)), REGISTRY)) == 1
    paid = (PAID_IN, (REGISTRY, OWNER, AMOUNT))
    assert transfer_violations(history(*withdrawn, transfers=paid), REGISTRY) == []


def test_unexpected_tokens_are_reported() -> None:
    events = (REGISTERED, ("JobPosted", POSTED), CLAIMED, FAILED)
    moved = (PAID_IN, (REGISTRY, OWNER, AMOUNT), (TREASURY, REGISTRY, 1))
    assert transfer_violations(history(*events, transfers=moved), REGISTRY) != []
    assert transfer_violations(history(*events, transfers=moved), REGISTRY, donations=1) == []


def test_every_patch_names_the_invariants_it_breaks() -> None:
    assert names() == sorted(PLANTED)
    assert {planted.breaks for planted in PLANTED.values()} <= set(INVARIANTS)


@pytest.mark.parametrize("name", names())
def test_patch_applies_to_the_tree_as_it_is(name: str, tmp_path: Path) -> None:
    """A patch that no longer applies must be rewritten for the changed code."""
    plant(PATCHES / f"{name}.patch", tmp_path / name)


START = Look(0.0, {}, {}, 0.0)


def at_rest(memory_mib: float = 100.0, descriptors: int = 50, **rows: int) -> Look:
    use = ProcessUse(memory_mib, descriptors, 600.0)
    tables = {name: TableSize(count, 8192) for name, count in rows.items()}
    return Look(60.0, {"coordinator-0": use, "anvil": use}, tables, 0.0)


def test_sizes_that_stay_are_no_growth() -> None:
    assert growth([START, at_rest(leases=100), at_rest(120, 60, leases=130)]) == []


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (at_rest(memory_mib=200), "coordinator-0 has 200 MiB"),
        (at_rest(descriptors=500), "coordinator-0 has 500 descriptors"),
        (at_rest(leases=9_000), "table leases has 9000 rows"),
    ],
    ids=["memory", "descriptors", "rows"],
)
def test_growth_without_a_reason_is_found(last: Look, said: str) -> None:
    (found,) = growth([START, at_rest(leases=100), at_rest(), last])
    assert found.startswith(f"growth: {said}")


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


def log_of(*transactions: str, block: int = 1) -> MarketLog:
    return MarketLog([Told("JobPosted", {"jobId": b"\x01"}, block, 0, 1, each) for each in transactions], [], block, 1)


def test_history_counts_what_a_reorg_erased_once() -> None:
    history = ChainHistory()
    for log in (log_of("0xa", "0xb"), log_of("0xa"), log_of("0xa", "0xc")):
        history.add(log)
    assert history.counts == {"JobPosted": 3}


def timeline_of(*done: Done, faults: tuple[Span, ...] = ()) -> Timeline:
    timeline = Timeline()
    for span in faults:
        timeline.struck(span)
    for one in done:
        timeline.add(one)
    return timeline


def all_done(**instead: str) -> Timeline:
    return timeline_of(
        *(Done(what, 10.0, 1.0, instead.get(what, min(work.done))) for what, work in USEFUL.items() for _ in range(5))
    )


def test_kind_of_work_that_is_never_done_is_below_its_floor() -> None:
    assert too_little(all_done(), 3) == []
    (found,) = too_little(all_done(file="expired"), 3)
    assert found.startswith("I13: file: 0 finished")
    assert "'expired': 5" in found


def test_failure_is_explained_by_a_recent_fault() -> None:
    failed = Done("open job", 100.0, 20.0, "store_unavailable")
    assert unexplained(timeline_of(failed, faults=(Span("store_killed", 60.0, 70.0),))) == []
    assert len(unexplained(timeline_of(failed))) == 1
    assert (
        len(unexplained(timeline_of(failed, faults=(Span("store_killed", 1.0, 2.0), Span("store_trouble", 101, 102)))))
        == 1
    )


def test_failure_is_not_explained_by_another_fault() -> None:
    failed = Done("open job", 100.0, 20.0, "store_unavailable")
    assert len(unexplained(timeline_of(failed, faults=(Span("reorg", 90.0, 90.0),)))) == 1


def test_answers_of_two_coordinators_need_separate_causes() -> None:
    twice = Done("job posted twice", 50.0, 1.0, "503 relayer_funds / 503 store_unavailable")
    empty, store = Span("relayer_empty", 49.0, 52.0), Span("store_killed", 49.0, 52.0)
    assert len(unexplained(timeline_of(twice, faults=(empty,)))) == 1
    assert unexplained(timeline_of(twice, faults=(empty, store))) == []


def test_every_fault_explains_something() -> None:
    assert set().union(*EXPLAINED.values()) - {"idle claim"} == set(KINDS)


CID = str(cid_of(b"content"))


def test_header_names_a_wrong_cid_for_correct_content() -> None:
    answer = f"HTTP/1.1 200 OK\r\nx-amz-meta-cid: {CID}\r\n\r\n{CID}".encode()
    head, _, content = with_other_cids(answer).partition(b"\r\n\r\n")
    named = head.rpartition(b" ")[2].decode()
    assert (named != CID, len(head) + 4 + len(content), content.decode()) == (True, len(answer), CID)
    assert parse_cid(named, "cid").codec == "raw"
