"""The lines of a batch's output and error files, and the ids of those files.

An id follows from the batch's: a finaliser that was killed writes the same files again, not others beside them.
"""

import hashlib
import json
from typing import Any, Final, Literal

from common.scalars import hex_of
from coordinatord.store.batch_lines import EndedLine

_WINDOW_ENDED: Final = "the batch's window ended before this line did"
_MESSAGES: Final = {
    "cancelled": "the owner cancelled the job",
    "provider_fail": "the provider failed the job",
    "reclaim": "the provider missed the job's window, and the payment went back",
    "expired": "nobody claimed the job in time",
}


def output_file_id(batch_id: str, which: Literal["output", "error"]) -> str:
    return f"file-{hashlib.sha256(f'{batch_id} {which}'.encode()).hexdigest()[:24]}"


def output_line(batch_id: str, ended: EndedLine) -> bytes:
    """Of a line that settled. The result is sealed to its owner, hence no body."""
    if ended.job_id is None or ended.result is None:
        raise AssertionError(f"line {ended.line} of {batch_id} did not settle")
    job_id = hex_of(ended.job_id)
    return _line(
        batch_id,
        ended.line,
        response={"status_code": 200, "request_id": job_id, "body": None},
        error=None,
        svc={"job_id": job_id, **json.loads(ended.result)},
    )


def error_line(batch_id: str, ended: EndedLine) -> bytes:
    """Of a line that did not."""
    if ended.code is None:
        raise AssertionError(f"line {ended.line} of {batch_id} has not ended")
    message = ended.message or _MESSAGES.get(ended.code, f"the chain refuses: {ended.code}")
    if ended.late and ended.message is None:
        message = _WINDOW_ENDED
    return _line(
        batch_id,
        ended.line,
        response=None,
        error={"code": ended.code, "message": message},
        svc={"job_id": hex_of(ended.job_id) if ended.job_id is not None else None, "line": ended.line},
    )


def _line(batch_id: str, number: int, **members: Any) -> bytes:
    """`custom_id` travels sealed: the coordinator never sees it."""
    line = {"id": f"batch_req_{batch_id}_{number}", "custom_id": None, **members}
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
