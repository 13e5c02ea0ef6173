"""Lines of batches: how they are read, checked and written."""

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.scalars import base64_of, hex_of
from coordinatord.api.batches.batches import batch_status, is_cancellable
from coordinatord.api.batches.batches_sql import BatchRow
from coordinatord.api.batches.line_checks import INCOMPLETE_LINE_MESSAGE, LineChecks, PaidLine
from coordinatord.api.batches.line_reader import FileCursor, InputLine, LineReader
from coordinatord.api.batches.lines_sql import EndedLine, LineRecord
from coordinatord.api.batches.output import error_line, output_file_id, output_line
from coordinatord.base.errors import Retryable
from tests.support.fakes.submissions import Body, Submitter


class Held:
    """A stored file that records the sizes of reads."""

    def __init__(self, content: bytes, gives: int | None = None) -> None:
        self.content = content
        self.largest = 0
        self._gives = gives

    @asynccontextmanager
    async def read(self, first: int, last: int) -> AsyncIterator[AsyncIterator[bytes]]:
        self.largest = max(self.largest, last + 1 - first)
        part = self.content[first : last + 1][: self._gives]

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(part), 7):
                yield part[start : start + 7]

        yield pieces()


async def all_lines(held: Held, **settings: int) -> tuple[list[tuple[int, bytes | None]], FileCursor]:
    reader = LineReader(held.read, len(held.content), **settings)
    lines: list[tuple[int, bytes | None]] = []
    cursor = FileCursor(0, 0)
    while cursor.offset < len(held.content):
        stretch = await reader.read_lines(cursor)
        assert stretch.next_cursor.offset > cursor.offset
        lines += [(line.number, line.text) for line in stretch.lines]
        cursor = stretch.next_cursor
    return lines, cursor


@pytest.mark.parametrize("window", [1, 3, 8, 1000])
@pytest.mark.parametrize("most_lines", [1, 2, 100])
async def test_lines_are_independent_of_the_window(window: int, most_lines: int) -> None:
    held = Held(b"one\n\ntwo two\n \t\r\nthree\r\n\n")
    lines, end = await all_lines(held, chunk_bytes=window, max_lines=most_lines)
    assert lines == [(1, b"one"), (3, b"two two"), (5, b"three\r")]
    assert end == FileCursor(len(held.content), 6)


async def test_last_line_may_lack_its_newline() -> None:
    assert (await all_lines(Held(b"one\ntwo"), chunk_bytes=4))[0] == [(1, b"one"), (2, b"two")]


async def test_line_that_is_too_long_is_passed_over_without_being_held() -> None:
    held = Held(b"one\n" + b"x" * 1000 + b"\ntwo\n")
    lines, _ = await all_lines(held, chunk_bytes=8, max_line_bytes=100)
    assert lines == [(1, b"one"), (2, None), (3, b"two")]
    assert held.largest <= 256
    assert (await all_lines(Held(b"x" * 1000), chunk_bytes=8, max_line_bytes=100))[0] == [(1, None)]


async def test_line_longer_than_a_window_is_whole() -> None:
    line = bytes(range(32, 127)) * 5
    assert (await all_lines(Held(line + b"\nnext"), chunk_bytes=8))[0] == [(1, line), (2, b"next")]


async def test_truncated_store_answer_is_an_error() -> None:
    held = Held(b"one\ntwo\nthree\n", gives=5)
    with pytest.raises(Retryable) as trouble:
        await LineReader(held.read, len(held.content)).read_lines(FileCursor(0, 0))
    assert trouble.value.code == "store_unavailable"


async def test_store_that_sends_more_than_was_requested_is_stopped() -> None:
    sent = count()

    @asynccontextmanager
    async def read(first: int, last: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            while next(sent) < 1000:
                yield b"1234567890"

        yield pieces()

    with pytest.raises(Retryable, match="more of the input file"):
        await LineReader(read, 100).read_lines(FileCursor(0, 0))
    assert next(sent) < 20


async def test_store_that_falls_silent_does_not_hold_the_worker() -> None:
    @asynccontextmanager
    async def read(first: int, last: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"1"
            await anyio.sleep_forever()

        yield pieces()

    with pytest.raises(Retryable, match="too slowly"), anyio.fail_after(10):
        await LineReader(read, 100, timeout_s=0.01).read_lines(FileCursor(0, 0))


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
        ({"rate_in": str(2**128 - 1), "units_in": str(2**32 - 1)}, "cap_overflow"),
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


JOB = b"\x0a" * 32
_ABSENT: dict[str, Any] = dict.fromkeys(attrs.fields_dict(BatchRow))
NEW_BATCH = BatchRow(**_ABSENT | {"total": 0, "completed": 0, "failed": 0, "expanded": False})


@pytest.mark.parametrize(
    ("changed", "status", "cancellable"),
    [
        ({}, "validating", True),
        ({"in_progress_at": 1}, "in_progress", True),
        ({"in_progress_at": 1, "total": 3, "completed": 1, "failed": 1, "expanded": True}, "in_progress", True),
        ({"in_progress_at": 1, "total": 2, "completed": 1, "failed": 1, "expanded": False}, "in_progress", True),
        ({"in_progress_at": 1, "total": 2, "completed": 1, "failed": 1, "expanded": True}, "finalizing", False),
        ({"in_progress_at": 1, "finalizing_at": 1}, "finalizing", False),
        ({"cancelling_at": 1, "finalizing_at": 1}, "cancelling", True),
        ({"completed_at": 1, "finalizing_at": 1}, "completed", False),
        ({"expired_at": 1, "finalizing_at": 1}, "expired", False),
        ({"cancelled_at": 1, "cancelling_at": 1, "finalizing_at": 1}, "cancelled", False),
        ({"failed_at": 1, "cancelling_at": 1}, "failed", False),
    ],
)
def test_status_follows_from_marks_and_members(changed: dict[str, object], status: str, cancellable: bool) -> None:
    batch = attrs.evolve(NEW_BATCH, **changed)
    assert (batch_status(batch), is_cancellable(batch)) == (status, cancellable)


@pytest.mark.parametrize(
    ("code", "message", "late", "told"),
    [
        ("invalid_json", "not JSON", False, "not JSON"),
        ("provider_fail", None, False, "the provider failed the job"),
        ("expired", None, False, "no provider claimed the job in time"),
        ("expired", None, True, "the batch's window ended before this line ended"),
        ("InvalidCid", None, False, "the chain refused the job: InvalidCid"),
        ("SlaNotAllowed", None, False, "sla_secs must be one of `windows` of GET /evm/chain"),
    ],
)
def test_error_line_says_why(code: str, message: str | None, late: bool, told: str) -> None:
    line = json.loads(error_line("batch_1", EndedLine(7, JOB, code, message, late, None)))
    assert line["error"] == {"code": code, "message": told}
    assert line["svc"] == {"job_id": hex_of(JOB), "line": 7}


def test_output_line_carries_no_body() -> None:
    told = {"result_cid": "c", "provider": 1, "rate_in": "2", "rate_out": "3", "completion_tok": 4}
    result = json.dumps(told)
    text = output_line("batch_1", EndedLine(7, JOB, None, None, False, result))
    assert text.endswith(b"\n")
    line = json.loads(text)
    assert line["response"] == {"status_code": 200, "request_id": hex_of(JOB), "body": None}
    assert line["svc"] == {"job_id": hex_of(JOB)} | told


def test_file_ids_follow_from_the_batch() -> None:
    ids = {output_file_id(batch, which) for batch in ("batch_1", "batch_2") for which in ("output", "error")}
    assert len(ids) == 4
    assert output_file_id("batch_1", "output") in ids
