"""Every error code of a single line."""

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.scalars import base64_of, hex_of
from coordinatord.api.batches.line_checks import INCOMPLETE_LINE_MESSAGE, LineChecks, PaidLine
from coordinatord.api.batches.line_reader import InputLine
from coordinatord.api.batches.lines_sql import LineRecord
from tests.support.fakes.submissions import Body, Submitter

ENDPOINT = "/v1/responses"


@pytest.fixture
def check(submitter: Submitter) -> Callable[[Body | bytes | None], PaidLine | LineRecord]:
    checks = LineChecks(submitter.domains, submitter.registry, ENDPOINT, submitter.terms, time.time())

    def one(line: Body | bytes | None) -> PaidLine | LineRecord:
        text = json.dumps(line).encode() if isinstance(line, dict) else line
        (checked,) = checks.check_lines([InputLine(7, text)])
        assert checked.line == 7
        return checked

    return one


Check = Callable[[Body | bytes | None], PaidLine | LineRecord]


def test_complete_submission_passes(check: Check, submitter: Submitter) -> None:
    line = submitter.line()
    good = check({**line, "url": ENDPOINT, "custom_id": None, "method": "POST"})
    assert isinstance(good, PaidLine)
    assert hex_of(good.paid_order.order.job_id) == line["job_id"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"{", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b'{"a":1,"a":2}', "invalid_json"),
        (b'{"c":' + b"[" * 100_000, "invalid_json"),
        # parsed, it would take thirty times its size in memory
        (b'{"more":[' + b"{}," * 20_000 + b"1]}", "invalid_json"),
        (b'{"model_id":1}', "invalid_line"),
        (None, "invalid_line"),
    ],
)
def test_line_that_is_no_submission_is_named_so(check: Check, text: bytes | None, code: str) -> None:
    skipped = check(text)
    assert isinstance(skipped, LineRecord)
    assert (skipped.code, skipped.job_id) == (code, None)


NOW = int(time.time())


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"url": "/v1/embeddings"}, "endpoint_mismatch"),
        ({"url": 5}, "endpoint_mismatch"),
        ({"units_in": -1}, "invalid_line"),
        ({"job_id": "0x" + "00" * 32}, "invalid_line"),
        ({"container": None}, "container_required"),
        ({"container": None, "auth_sig": None}, "container_required"),
        ({"container": None, "auth_sig": None, "rate_in": None, "rate_out": None}, "invalid_line"),
        ({"auth_sig": None}, "container_without_payment"),
        ({"container_cid": "bafy"}, "container_ambiguous"),
        ({"container": base64_of(b"\x01" * 40)}, "too_short"),
        ({"container": base64_of(b"\x02" * 400)}, "bad_version"),
        ({"container": base64_of(b"\x01" * 400)}, "commitment_mismatch"),
        ({"container": "AAA"}, "invalid_line"),
        ({"signature": "0x" + "11" * 64 + "1b"}, "invalid_order_signature"),
        ({"signature": "0x" + "11" * 64 + "02"}, "invalid_order_signature"),
        ({"auth_sig": "0x" + "11" * 64 + "1b"}, "invalid_payment_signature"),
    ],
)
def test_member_that_is_wrong_is_named(check: Check, submitter: Submitter, changed: Body, code: str) -> None:
    members = {name: value for name, value in {**submitter.line(), **changed}.items() if value is not None}
    skipped = check(members)
    assert isinstance(skipped, LineRecord)
    assert skipped.code == code, skipped.message


QUESTION = {"model_id": 1, "sla_secs": 3600, "units_in": 11, "units_out": 64}
ORDER_ONLY = ("c", "rate_in", "rate_out", "designated", "expires_at", "owner", "job_id", "signature")
PAYMENT = ("auth_sig", "amount", "container or container_cid")


def test_market_probe_lists_all_missing_fields(check: Check) -> None:
    skipped = check(QUESTION)
    assert isinstance(skipped, LineRecord)
    assert skipped.code == "invalid_line"
    said, *missing = skipped.message.split("; ")
    assert said == INCOMPLETE_LINE_MESSAGE
    assert missing == [f"{name} is required" for name in (*ORDER_ONLY, *PAYMENT)]


def test_unpaid_order_lists_the_missing_fields(check: Check, submitter: Submitter) -> None:
    line = submitter.line()
    skipped = check({name: value for name, value in line.items() if name not in ("auth_sig", "container")})
    assert isinstance(skipped, LineRecord)
    assert (skipped.code, hex_of(skipped.job_id or b"")) == ("container_required", line["job_id"])
    assert skipped.message.split("; ") == [
        INCOMPLETE_LINE_MESSAGE,
        "auth_sig is required",
        "container or container_cid is required",
    ]


def test_member_that_is_malformed_is_named_alone(check: Check, submitter: Submitter) -> None:
    skipped = check({**submitter.line(), "units_in": -1})
    assert isinstance(skipped, LineRecord)
    assert skipped.message.startswith("units_in must be")


@pytest.mark.parametrize(
    ("signed", "code"),
    [
        ({"expires_at": NOW - 1}, "order_expired"),
        ({"expires_at": NOW + 90_000}, "expiry_too_far"),
        ({"sla_secs": 86_401}, "sla_too_long"),
        ({"amount": 1}, "insufficient_payment"),
        ({"amount": 10**30}, "insufficient_payment"),
    ],
)
def test_terms_out_of_range_are_named(check: Check, submitter: Submitter, signed: Body, code: str) -> None:
    line = submitter.line(**signed)
    skipped = check(line)
    assert isinstance(skipped, LineRecord)
    assert (skipped.code, hex_of(skipped.job_id or b"")) == (code, line["job_id"])


def test_cap_that_fits_no_uint128_is_named(check: Check, submitter: Submitter) -> None:
    huge = {"rate_in": str(2**128 - 1), "units_in": str(2**32 - 1)}
    skipped = check({**submitter.line(), **huge})
    assert isinstance(skipped, LineRecord)
    assert skipped.code == "cap_overflow"


ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.just("0x" + "ff" * 32),
        st.just("-1"),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture has no state that a line changes
@given(st.data())
def test_arbitrary_line_is_skipped_without_a_fault(check: Check, submitter: Submitter, data: st.DataObject) -> None:
    line = submitter.line()
    changed = data.draw(st.dictionaries(st.sampled_from([*line, "url"]), ANYTHING, min_size=1, max_size=3))
    assert check({**line, **changed}).line == 7
