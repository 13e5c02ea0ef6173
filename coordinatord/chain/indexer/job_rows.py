"""Rows of `jobs` in PostgreSQL's binary COPY format, which is faster than text for both sides.

    number of columns (2 bytes) │ per column: length (4 bytes), value │ …

An integer has the length of its column's type. A numeric consists of digits to the base of 10,000.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from coordinatord.chain.indexer.changes import NewJob, contradiction

COLUMNS: Final = ("ordinal", *NewJob.__struct_fields__)
# Columns of an open job. The other columns have the defaults of the table.
POSTED: Final = COLUMNS[: COLUMNS.index("state")]
# Ordinal and job.
Numbered = tuple[int, NewJob]

_BEGIN: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"
_BASE: Final = 10_000
# Cached encodings of amounts. Rates and fees repeat.
_AMOUNT_CACHE_SIZE: Final = 4_096

_LENGTH: Final = struct.Struct(">i")
_BIGINT: Final = struct.Struct(">iq")
_INTEGER: Final = struct.Struct(">ii")
# Runs of columns with fixed lengths, between columns of variable length. The first begins with the number of columns
# and the ordinal.
_TO_SLA: Final = struct.Struct(">hiqi32si20si32siqiq")
_UNITS_TO_EXPIRY: Final = struct.Struct(">iqiqiqiq")
_PLACE: Final = struct.Struct(">iqiq")
_STATE_TO_TOKENS: Final = struct.Struct(">ihihiqiqiq")


def posted_rows(jobs: Iterable[Numbered]) -> bytes:
    """Encode open jobs, with the columns POSTED."""
    parts = [_BEGIN]
    for ordinal, job in jobs:
        _add_post(parts, len(POSTED), ordinal, job)
    return b"".join((*parts, _END))


def job_rows(jobs: Iterable[Numbered]) -> bytes:
    """Encode jobs with all columns."""
    parts = [_BEGIN]
    for ordinal, job in jobs:
        _add_post(parts, len(COLUMNS), ordinal, job)
        _add_since(parts, job)
    return b"".join((*parts, _END))


def _add_post(parts: list[bytes], columns: int, ordinal: int, j: NewJob) -> None:
    """Append the columns of the post. Raise Retryable for numbers too large for a column, which the registry never
    accepts."""
    task_cid = j.task_cid.encode()
    try:
        parts += (
            _TO_SLA.pack(columns, 8, ordinal, 32, j.job_id, 20, j.owner, 32, j.c, 8, j.model_id, 8, j.sla_secs),
            _numeric(j.rate_in),
            _numeric(j.rate_out),
            _UNITS_TO_EXPIRY.pack(8, j.units_in, 8, j.units_out, 8, j.designated, 8, j.expires_at),
            _numeric(j.cap),
            _INTEGER.pack(4, j.fee_bps),
            _numeric(j.gas_fee),
            _LENGTH.pack(len(task_cid)),
            task_cid,
            _LENGTH.pack(len(j.pay_sig)),
            j.pay_sig,
            _PLACE.pack(8, j.posted_block, 8, j.posted_log),
        )
    except struct.error as error:
        raise contradiction(f"job {j.job_id.hex()} has a number that no post has ({error})") from error


def _add_since(parts: list[bytes], j: NewJob) -> None:
    try:
        parts += (
            _STATE_TO_TOKENS.pack(
                2, j.state, 2, j.ended_because, 8, j.provider_id, 8, j.claimed_at, 8, j.completion_tok
            ),
            _numeric(j.cost),
            _NULL if j.result_cid is None else _text(j.result_cid),
            _NULL if j.ended_at is None else _BIGINT.pack(8, j.ended_at),
        )
    except struct.error as error:
        raise contradiction(f"job {j.job_id.hex()} has a number that no end has ({error})") from error


def _text(value: str) -> bytes:
    written = value.encode()
    return _LENGTH.pack(len(written)) + written


@lru_cache(_AMOUNT_CACHE_SIZE)
def _numeric(value: int) -> bytes:
    """Encode an integer of at least 0 as numeric."""
    digits: list[int] = []
    while value:
        value, digit = divmod(value, _BASE)
        digits.insert(0, digit)
    many = len(digits)
    return struct.pack(f">i{4 + many}h", 2 * (4 + many), many, max(0, many - 1), 0, 0, *digits)
