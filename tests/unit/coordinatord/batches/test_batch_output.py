import json

import attrs
import pytest

from common.scalars import hex_of
from coordinatord.api.batches.batches import batch_status, is_cancellable
from coordinatord.api.batches.batches_sql import BatchRow
from coordinatord.api.batches.lines_sql import EndedLine
from coordinatord.api.batches.output import error_line, output_file_id, output_line

JOB = b"\x0a" * 32
NEW_BATCH = BatchRow(
    id="batch_1",
    owner=b"\x01" * 20,
    endpoint="/v1/responses",
    input_file_id="file-1",
    completion_window="24h",
    metadata="{}",
    request_hash=b"",
    errors=None,
    output_file_id=None,
    error_file_id=None,
    ends_as=None,
    created_at=1,
    expires_at=2,
    in_progress_at=None,
    finalizing_at=None,
    completed_at=None,
    failed_at=None,
    expired_at=None,
    cancelling_at=None,
    cancelled_at=None,
    total=0,
    completed=0,
    failed=0,
    expanded=False,
)


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
