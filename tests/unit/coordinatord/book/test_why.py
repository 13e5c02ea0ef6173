"""Rules that explain why a job is unclaimed, applied to invented facts."""

import attrs
import pytest

from common.api.why import Why
from coordinatord.api.book.why import explain_open_job
from coordinatord.api.book.why_sql import AskedWindow, OpenJob, ProviderFacts
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.snapshot_sql import Snapshot
from tests.unit.coordinatord.book.polling import row

OWNER = b"\x01" * 20
ROW = attrs.evolve(
    row(7, owner=OWNER), sla_secs=3600, rate_in="100", rate_out="200", units_in=10, units_out=10, amount="2014"
)
JOB = OpenJob(
    ROW,
    Snapshot(9, b"\x09", 1000),
    posted_log=0,
    model_enabled=True,
    key_lost=False,
    leased_to=None,
    seconds_left=7,
    older_bids=0,
)
READY = ProviderFacts(
    provider_id=1,
    listed=True,
    allowed=True,
    capacity=4,
    active_jobs=0,
    live=True,
    seconds_since_poll=1,
    free_slots=2,
    leased_jobs=0,
    older_orders=0,
    meets_ask=True,
    asks=(AskedWindow(3600, 100, 200),),
)
PAID = Funds({OWNER: 5000}, set())


def told(*providers: ProviderFacts, job: OpenJob = JOB, funds: Funds = PAID) -> Why:
    return explain_open_job(job, providers, funds)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"listed": False}, "not_listed"),
        ({"allowed": False}, "model_not_allowed"),
        ({"live": False, "seconds_since_poll": None}, "not_live"),
        ({"active_jobs": 4}, "full"),
        ({"free_slots": 0}, "no_free_slots"),
        ({"leased_jobs": 2}, "no_free_slots"),
        ({"older_orders": 2}, "behind_others"),
        ({"meets_ask": False, "asks": ()}, "no_ask"),
        ({"meets_ask": False, "asks": (AskedWindow(60, 1, 1),)}, "window"),
        ({"meets_ask": False, "asks": (AskedWindow(60, 1, 1), AskedWindow(3600, 101, 1))}, "price"),
    ],
)
def test_each_reason_has_its_remedy(changed: dict[str, object], code: str) -> None:
    answer = told(attrs.evolve(READY, **changed))  # type: ignore[arg-type] # matches the fields' types
    [provider] = answer.providers
    assert not provider.takes
    assert [reason.code for reason in provider.reasons] == [code]
    assert provider.reasons[0].remedy
    assert answer.verdict == ("nobody_live" if code in ("not_live", "not_listed") else code)


@pytest.mark.parametrize(
    ("job", "funds", "code"),
    [
        (attrs.evolve(JOB, model_enabled=False), PAID, "model_disabled"),
        (attrs.evolve(JOB, key_lost=True), PAID, "escrow_key_lost"),
        (JOB, Funds({}, {ROW.job_id}), "authorization_used"),
        (JOB, Funds({OWNER: 2013}, set()), "unfunded"),
        (attrs.evolve(JOB, leased_to=0), Funds({}, set()), "held_back"),
    ],
)
def test_job_wide_reason_excludes_every_provider(job: OpenJob, funds: Funds, code: str) -> None:
    answer = told(READY, attrs.evolve(READY, provider_id=2), job=job, funds=funds)
    assert answer.verdict == code
    assert [[reason.code for reason in one.reasons] for one in answer.providers] == [[code], [code]]


def test_other_terms_are_no_help_where_only_the_money_is_missing() -> None:
    asks = (AskedWindow(3600, 100, 200), AskedWindow(60, 1, 1))
    answer = told(attrs.evolve(READY, asks=asks), funds=Funds({OWNER: 2013}, set()))
    assert [(one.change, one.value) for one in answer.would_help] == [("funds", {"balance": "2014"})]


def test_offered_provider_can_claim_without_room() -> None:
    job = attrs.evolve(JOB, leased_to=1)
    full = attrs.evolve(READY, leased_jobs=2)
    answer = told(full, attrs.evolve(READY, provider_id=2), job=job)
    assert answer.verdict == "leased"
    assert [(one.provider_id, one.takes) for one in answer.providers] == [("1", True), ("2", False)]
    assert [reason.code for reason in answer.providers[1].reasons] == ["leased"]


def test_why_shows_the_cheapest_sufficient_ask_and_windows() -> None:
    answer = told(
        attrs.evolve(
            READY, provider_id=1, meets_ask=False, asks=(AskedWindow(3600, 900, 900), AskedWindow(60, 100, 200))
        ),
        attrs.evolve(READY, provider_id=2, meets_ask=False, asks=(AskedWindow(3600, 300, 300),)),
        attrs.evolve(
            READY, provider_id=3, meets_ask=False, asks=(AskedWindow(3600, 250, 299), AskedWindow(600, 101, 1))
        ),
        attrs.evolve(READY, provider_id=4, meets_ask=False, listed=False, asks=(AskedWindow(3600, 101, 200),)),
    )
    helps = [(one.change, one.value, one.providers) for one in answer.would_help]
    assert helps == [
        ("rates", {"rate_in": "250", "rate_out": "299"}, "1"),
        ("window", {"sla_secs": "60"}, "1"),
    ]
    assert answer.verdict == "price"


def test_several_reasons_are_counted_in_the_verdict() -> None:
    answer = told(attrs.evolve(READY, active_jobs=4), attrs.evolve(READY, provider_id=2, free_slots=0))
    assert answer.verdict == "kept_away"
    assert "1 holds as many jobs as it may" in answer.said


def test_why_names_an_alternative_to_a_silent_provider() -> None:
    job = attrs.evolve(JOB, row=attrs.evolve(ROW, designated=9))
    away = attrs.evolve(READY, provider_id=9, live=False, seconds_since_poll=99)
    answer = told(away, READY, job=job)
    assert answer.verdict == "not_live"
    assert "provider 9 alone: the provider last polled 99 s ago" in answer.said
    assert [(one.change, one.value) for one in answer.would_help] == [("designated", {"designated": "1"})]
