"""Encode rows of `jobs` in PostgreSQL's binary COPY format, which both sides process faster than text.

    number of columns (2 bytes) │ per column: length (4 bytes), value │ …

An integer has the length of its column's type. A numeric consists of digits in base 10,000.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from coordinatord.chain.indexer.changes import NewJob, contradiction_error

JOB_COLUMNS: Final = ("ordinal", *NewJob.__struct_fields__)
# Columns of an open job. The other columns have the defaults of the table.
POSTED_COLUMNS: Final = JOB_COLUMNS[: JOB_COLUMNS.index("state")]
NumberedJob = tuple[int, NewJob]  # ordinal and job

_COPY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER: Final = b"\xff\xff"
_NULL_VALUE: Final = b"\xff\xff\xff\xff"
_NUMERIC_BASE: Final = 10_000
# Number of cached encodings of amounts. Rates and fees repeat.
_AMOUNT_CACHE_SIZE: Final = 4_096

_LENGTH_STRUCT: Final = struct.Struct(">i")
_BIGINT_STRUCT: Final = struct.Struct(">iq")
_INTEGER_STRUCT: Final = struct.Struct(">ii")
# Consecutive columns of fixed length. The first struct begins with the number of columns and the ordinal.
_ORDINAL_TO_SLA_STRUCT: Final = struct.Struct(">hiqi32si20si32siqiq")
_UNITS_TO_EXPIRY_STRUCT: Final = struct.Struct(">iqiqiqiq")
_BLOCK_AND_LOG_STRUCT: Final = struct.Struct(">iqiq")
_STATE_TO_TOKENS_STRUCT: Final = struct.Struct(">ihihiqiqiq")


def encode_posted_rows(jobs: Iterable[NumberedJob]) -> bytes:
    """Encode open jobs, with the columns POSTED_COLUMNS."""
    parts = [_COPY_HEADER]
    for ordinal, job in jobs:
        _add_post_columns(parts, len(POSTED_COLUMNS), ordinal, job)
    return b"".join((*parts, _COPY_TRAILER))


def encode_job_rows(jobs: Iterable[NumberedJob]) -> bytes:
    """Encode jobs with all columns."""
    parts = [_COPY_HEADER]
    for ordinal, job in jobs:
        _add_post_columns(parts, len(JOB_COLUMNS), ordinal, job)
        _add_outcome_columns(parts, job)
    return b"".join((*parts, _COPY_TRAILER))


def _add_post_columns(parts: list[bytes], column_count: int, ordinal: int, job: NewJob) -> None:
    """Append the columns of the post. Raise Retryable for numbers too large for a column, which the registry never
    accepts."""
    task_cid = job.task_cid.encode()
    try:
        parts += (
            _ORDINAL_TO_SLA_STRUCT.pack(
                column_count, 8, ordinal, 32, job.job_id, 20, job.owner, 32, job.c, 8, job.model_id, 8, job.sla_secs
            ),
            _encode_numeric(job.rate_in),
            _encode_numeric(job.rate_out),
            _UNITS_TO_EXPIRY_STRUCT.pack(8, job.units_in, 8, job.units_out, 8, job.designated, 8, job.expires_at),
            _encode_numeric(job.cap),
            _INTEGER_STRUCT.pack(4, job.fee_bps),
            _encode_numeric(job.gas_fee),
            _LENGTH_STRUCT.pack(len(task_cid)),
            task_cid,
            _LENGTH_STRUCT.pack(len(job.pay_sig)),
            job.pay_sig,
            _BLOCK_AND_LOG_STRUCT.pack(8, job.posted_block, 8, job.posted_log),
        )
    except struct.error as error:
        raise contradiction_error(f"job {job.job_id.hex()} has a number too large for a post ({error})") from error


def _add_outcome_columns(parts: list[bytes], job: NewJob) -> None:
    try:
        parts += (
            _STATE_TO_TOKENS_STRUCT.pack(
                2, job.state, 2, job.ended_because, 8, job.provider_id, 8, job.claimed_at, 8, job.completion_tok
            ),
            _encode_numeric(job.cost),
            _NULL_VALUE if job.result_cid is None else _encode_text(job.result_cid),
            _NULL_VALUE if job.ended_at is None else _BIGINT_STRUCT.pack(8, job.ended_at),
        )
    except struct.error as error:
        raise contradiction_error(f"job {job.job_id.hex()} has a number too large for its end ({error})") from error


def _encode_text(value: str) -> bytes:
    written = value.encode()
    return _LENGTH_STRUCT.pack(len(written)) + written


@lru_cache(_AMOUNT_CACHE_SIZE)
def _encode_numeric(value: int) -> bytes:
    """Encode an integer of at least 0 as numeric."""
    digits: list[int] = []
    while value:
        value, digit = divmod(value, _NUMERIC_BASE)
        digits.insert(0, digit)
    digit_count = len(digits)
    return struct.pack(
        f">i{4 + digit_count}h", 2 * (4 + digit_count), digit_count, max(0, digit_count - 1), 0, 0, *digits
    )
