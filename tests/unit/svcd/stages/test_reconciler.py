import pytest

from svcd.journal.book_row import Job
from svcd.journal.entries import JobEntry, JournalState
from svcd.journal.held_job import CLAIM_LIFETIME_S
from svcd.stages.reconciler import Verdict, decide_verdict
from tests.support.fakes.market import START, Market

OURS = 7


def _entry(state: JournalState, row: dict[str, object]) -> JobEntry:
    return JobEntry(Job.read(row), "demo/text", state, float(START), 10, 100, None, None)


@pytest.mark.parametrize(
    ("state", "chain", "after", "expected"),
    [
        ("claiming", {"state": 0}, 0, "wait"),  # the claim may still be mined
        ("claiming", {"state": 0}, CLAIM_LIFETIME_S, "not_claimed"),
        ("claiming", {"state": 1}, 10, "work"),  # the claim was mined, and its answer was lost
        ("claiming", {"state": 1, "provider_id": "8"}, 10, "not_claimed"),
        ("claiming", None, CLAIM_LIFETIME_S, "not_claimed"),
        ("claimed", {"state": 0}, 0, "wait"),  # a reorg removed the claim, which may be mined again
        ("claimed", {"state": 0}, CLAIM_LIFETIME_S, "claim_expired"),
        ("claimed", {"state": 1}, 599, "work"),
        ("claimed", {"state": 1}, 600, "claim_expired"),
        ("sealed", {"state": 1}, 599, "settle"),
        ("sealed", {"state": 1}, 600, "claim_expired"),
        ("sealed", {"state": 0}, 0, "settle"),  # the settler claims the job again
        ("sealed", {"state": 0}, 3599, "settle"),
        ("sealed", {"state": 0}, 3600, "claim_expired"),  # the job has expired as well
        ("sealed", None, 3599, "claim_expired"),
        ("sealed", None, 0, "wait"),
        ("claimed", {"state": 0}, CLAIM_LIFETIME_S - 1, "wait"),
        ("sealed", {"state": 2}, 10, "settled"),  # the settle's answer was lost
        ("sealed", {"state": 3}, 10, "claim_expired"),
        ("failing", {"state": 1}, 10, "fail"),
        ("failing", {"state": 1}, 10_000, "fail"),
        ("failing", {"state": 2}, 10, "settled"),
        ("failing", {"state": 3}, 10, "failed"),
    ],
)
def test_chain_decides_and_the_journal_adds_what_it_cannot_know(
    state: JournalState, chain: dict[str, object] | None, after: float, expected: Verdict
) -> None:
    market = Market(lambda: START)
    row = market.jobs[market.post()]
    on_chain = None
    if chain is not None:
        on_chain = Job.read({**row, "provider_id": str(OURS), "claimed_at": str(START), **chain})
    assert decide_verdict(_entry(state, row), on_chain, OURS, START + after) == expected
