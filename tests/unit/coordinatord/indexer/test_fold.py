import pytest
from msgspec.structs import replace

from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts import contract_events
from coordinatord.chain.indexer.changes import (
    BY_FAIL,
    BY_OWNER,
    BY_RECLAIM,
    BY_SETTLE,
    CANCELLED,
    CLAIMED,
    OPEN,
    SETTLED,
    CatalogueModel,
    Contradiction,
    NewJob,
    ProviderPatch,
    RowChanges,
)
from coordinatord.chain.indexer.fold import EventMerger
from coordinatord.chain.indexer.job_rows import encode_job_rows, encode_posted_rows

JOB = b"\x07" * 32


def posted(job_id: bytes = JOB, **terms: int) -> contract_events.JobPosted:
    values = {"rate_in": 10, "rate_out": 20, "units_in": 1_000_000, "units_out": 500_001} | terms
    return contract_events.JobPosted(
        job_id, b"\xaa" * 20, 1, b"\xcc" * 32, 60, **values, designated=0, expires_at=9, fee_bps=250, gas_fee=3,
        task_cid="bafk", pay_sig=b"\1" * 65,
    )  # fmt: skip


def folded(*events: contract_events.Event) -> RowChanges:
    fold = EventMerger({5: 1000}.__getitem__)
    for log, event in enumerate(events):
        fold.add(event, 5, log)
    return fold.changes


def test_a_life_within_one_stretch_is_one_new_row() -> None:
    changes = folded(
        posted(), contract_events.JobClaimed(JOB, 4, 8), contract_events.JobSettled(JOB, 4, 17, 15, 1, 2, "bafkr")
    )
    (job,) = changes.new_jobs.values()
    assert (job.state, job.ended_because, job.provider_id, job.claimed_at) == (SETTLED, BY_SETTLE, 4, 8)
    assert (job.completion_tok, job.cost, job.result_cid, job.ended_at) == (17, 15, "bafkr", 1000)
    assert (job.posted_block, job.posted_log) == (5, 0)
    assert changes.jobs == {}
    assert changes.providers[4].active_jobs == 0


def test_events_of_a_job_become_one_patch() -> None:
    changes = folded(contract_events.JobClaimed(JOB, 4, 8), contract_events.JobSettled(JOB, 4, 17, 15, 1, 2, "bafkr"))
    (patch,) = changes.jobs.values()
    assert (patch.required_state, patch.state, patch.provider_id, patch.cost) == (OPEN, SETTLED, 4, 15)
    assert patch.ended_at == 1000


@pytest.mark.parametrize(
    ("terms", "cap"),
    [({}, 21), ({"units_out": 500_000}, 20), ({"rate_in": 0, "rate_out": 0}, 1), ({"units_in": 0, "units_out": 1}, 1)],
)
def test_cap_is_rounded_up_and_at_least_one(terms: dict[str, int], cap: int) -> None:
    assert folded(posted(**terms)).new_jobs[JOB].cap == cap


@pytest.mark.parametrize(
    "events",
    [
        (posted(), posted()),
        (posted(), contract_events.JobSettled(JOB, 4, 17, 15, 1, 2, "bafkr")),
        (posted(), contract_events.JobClaimed(JOB, 4, 8), contract_events.JobClaimed(JOB, 5, 8)),
        (contract_events.JobClaimed(JOB, 4, 8), contract_events.JobCancelled(JOB)),
        (contract_events.JobCancelled(JOB), posted()),
        (contract_events.ProviderRegistered(1, b"\1" * 20), contract_events.ProviderRegistered(1, b"\2" * 20)),
        (contract_events.ProviderDeregistered(1), contract_events.ProviderListed(1, True)),
        (contract_events.ProviderDeregistered(1), contract_events.ProviderRegistered(1, b"\1" * 20)),
    ],
)
def test_impossible_event_order_is_a_contradiction(events: tuple[contract_events.Event, ...]) -> None:
    with pytest.raises(Contradiction):
        folded(*events)


@pytest.mark.parametrize(
    ("ending", "was", "state", "because", "freed"),
    [
        (contract_events.JobFailed(JOB, 4), CLAIMED, CANCELLED, BY_FAIL, -1),
        (contract_events.JobReclaimed(JOB, 4), CLAIMED, CANCELLED, BY_RECLAIM, -1),
        (contract_events.JobCancelled(JOB), OPEN, CANCELLED, BY_OWNER, 0),
    ],
)
def test_job_that_ends_without_a_result_frees_its_slot(
    ending: contract_events.Event, was: int, state: int, because: int, freed: int
) -> None:
    changes = folded(ending)
    (patch,) = changes.jobs.values()
    assert (patch.required_state, patch.state, patch.ended_because, patch.ended_at) == (was, state, because, 1000)
    assert [provider.active_jobs for provider in changes.providers.values()] == ([freed] if freed else [])


def test_provider_event_changes_its_columns() -> None:
    changes = folded(
        contract_events.IdentitySet(1, b"\2" * 32, b"evidence", 7),
        contract_events.CapacityRequested(1, 64, 8),
        contract_events.ProviderListed(1, True),
        contract_events.CeilingSet(1, 32),
        contract_events.AllModelsAllowed(1, True),
        contract_events.StandingSet(1, 600, 40),
    )
    assert changes.providers == {
        1: ProviderPatch(
            1,
            box_key=b"\2" * 32,
            evidence=b"evidence",
            identity_issued_at=7,
            requested=64,
            capacity_issued_at=8,
            listed=True,
            ceiling=32,
            allow_all_models=True,
            reputation=600,
        )
    }


def test_market_is_as_its_last_events_say() -> None:
    changes = folded(
        contract_events.ModelSet(1, "m", True, "us", "{}"),
        contract_events.SlaSet(60, True),
        contract_events.SlaSet(60, False),
        contract_events.FeesSet(250, 3),
        contract_events.ModelAllowed(4, 1, True),
        contract_events.AllowlistSet(b"key", 1, "entry"),
    )
    assert changes.models == {1: CatalogueModel(1, "m", True, "us", "{}")}
    assert (changes.slas, changes.fees) == ({60: False}, (250, 3))
    assert (changes.provider_models, changes.allowlist) == ({(4, 1): True}, {b"key": (1, "entry")})


def test_an_ask_with_both_rates_zero_is_withdrawn() -> None:
    quotes = (
        contract_events.AskRates(1, 60, 0, 0),
        contract_events.AskRates(2, 60, 0, 5),
        contract_events.AskRates(3, 60, 5, 0),
    )
    changes = folded(contract_events.AsksPublished(3, 77, quotes))
    assert changes.asks == {(3, 1, 60): None, (3, 2, 60): (0, 5), (3, 3, 60): (5, 0)}
    assert changes.ask_times == {3: 77}


def test_last_operator_of_a_range_wins() -> None:
    changes = folded(contract_events.ProviderRegistered(1, b"\1" * 20), contract_events.OperatorChanged(1, b"\2" * 20))
    assert changes.new_providers[1].operator == b"\2" * 20
    patched = folded(contract_events.OperatorChanged(1, b"\2" * 20), contract_events.OperatorChanged(1, b"\3" * 20))
    assert patched.providers[1].operator == b"\3" * 20


def test_provider_that_leaves_takes_its_changes_along() -> None:
    changes = folded(contract_events.ProviderListed(1, True), contract_events.ProviderDeregistered(1))
    assert (changes.providers, changes.removed_providers) == ({}, {1})
    at_once = folded(contract_events.ProviderRegistered(2, b"\1" * 20), contract_events.ProviderDeregistered(2))
    assert (at_once.new_providers, at_once.removed_providers) == ({}, set())


NEW_JOB = NewJob(b"\1" * 32, b"\2" * 20, b"\3" * 32, 5, 60, 1, 2, 3, 4, 0, 9, 7, 250, 8, "bafk", b"\4" * 65, 11, 12)


def test_number_beyond_the_column_is_a_contradiction() -> None:
    with pytest.raises(Retryable, match=r"contradict.*number too large for a post"):
        encode_posted_rows([(0, replace(NEW_JOB, expires_at=2**63))])
    with pytest.raises(Retryable, match=r"contradict.*number too large for its end"):
        encode_job_rows([(0, replace(NEW_JOB, state=2, completion_tok=2**63))])
