from typing import Any

import attrs
import msgspec
import pytest

from svc.cli import tables
from svc.cli.money import compute_payment
from svc.records import Allocation, Ask, BookRow, Job, ModelPlan, Quote

_ORDER: dict[str, Any] = {
    **{"job_id": "0x01", "owner": "0x02", "model_id": 1, "sla_secs": 3600, "rate_in": 1_000_000, "rate_out": 2_000_000},
    **{"units_in": 10, "units_out": 100, "designated": 0, "provider_id": 3, "expires_at": 9, "task_cid": "b"},
    **{"completion_tok": 40},
}


@pytest.mark.parametrize(
    ("state", "ended_because", "status"),
    [
        *((0, 0, "queued"), (1, 0, "in_progress"), (2, 1, "completed")),
        *((3, 2, "cancelled"), (3, 3, "provider_fail"), (3, 4, "reclaim"), (3, 5, "expired")),
    ],
)
def test_row_of_the_book_reads_as_why_it_ended(state: int, ended_because: int, status: str) -> None:
    row = {**_ORDER, "c": "0x", "claimed_at": 0, "posted_block": 1, "result_cid": None}
    read = msgspec.convert(row | {"state": state, "ended_because": ended_because}, BookRow)
    assert tables.job_status(read) == status


def test_lines_that_no_provider_takes_have_a_row_of_their_own() -> None:
    share = Allocation(provider_id=7, box_key="0x", rate_in=1, rate_out=2, lines=3)
    table = tables.plan_table([ModelPlan(model_id=1, lines=5, allocation=(share,))], {1: "a/b"})
    assert list(table.rows) == [("a/b", "7", "3", "1", "2"), ("a/b", "none", "2", None, None)]


def test_unknown_model_is_shown_by_number() -> None:
    assert tables.model_name_of(9, {1: "a"}) == "model 9"


def test_cost_splits_the_authorised_amount_exactly() -> None:
    details = _ORDER | {"state": 2, "ended_because": 1}
    job = {"id": "0x01", "model": "m", "status": "completed", "in_progress_at": 1, "result_cid": "b", "svc": details}
    domain = {"name": "T", "version": "1", "chainId": 1, "verifyingContract": "0x"}
    authorization = {"domain": domain, "to": "0x", "value": 1, "valid_after": 0, "valid_before": 1, "nonce": "0x"}
    price = {"cap": 210, "fee_bps": 250, "fee": 5, "gas_fee": 2000, "amount": 2215, "authorization": authorization}
    paid = compute_payment(msgspec.convert(job, Job), msgspec.convert(price, Quote))
    assert attrs.asdict(paid) == {"authorised": 2215, "parts": {"provider": 90, "fee": 2, "gas_fee": 2000}}
    assert (paid.parts.total, paid.refunded) == (2092, 123)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (3600.5, "1 h"),
        (90_061, "1 d 1 h"),
        (-5, "0 s"),
    ],
)
def test_length_of_time_is_told_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert tables.format_duration(seconds) == shown


def test_job_list_shows_remaining_times_of_live_jobs() -> None:
    row = {**_ORDER, "c": "0x", "claimed_at": 0, "posted_block": 1, "result_cid": None, "ended_because": 0}
    rows = [
        msgspec.convert(row | {"state": 0, "expires_at": 1120}, BookRow),
        msgspec.convert(row | {"state": 1, "reclaimable_at": 1030}, BookRow),
        msgspec.convert(row | {"state": 2, "ended_because": 1, "ended_at": 990}, BookRow),
    ]
    table = tables.jobs_table(rows, {}, 1000)
    assert [each[table.columns.index("left")] for each in table.rows] == ["2 min", "30 s", None]


def test_newcomer_is_told_from_a_provider_that_settles_none() -> None:
    ask = {"provider_id": 1, "model_id": 1, "sla": 3600, "rate_in": 1, "rate_out": 1}
    counts = {"window_secs": 604_800, "settled": 0, "failed": 0, "reclaimed": 0, "median_secs": None}
    lately = [None, counts, counts | {"failed": 2}, counts | {"settled": 9, "reclaimed": 1, "median_secs": 75}]
    table = tables.asks_table(
        [msgspec.convert(ask | ({"reliability": each} if each else {}), Ask) for each in lately], {}
    )
    assert [row[-2:] for row in table.rows] == [(None, None), ("new", None), ("0/2", None), ("9/10", "1 min 15 s")]
