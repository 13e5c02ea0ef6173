"""The checks of the chain's history, applied to histories made by hand."""

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import pytest

from tests.support.invariants.liveness import liveness_violations
from tests.support.invariants.market_log import MarketLog, Told
from tests.support.invariants.replay import Replayed
from tests.support.invariants.transfers import transfer_violations

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
