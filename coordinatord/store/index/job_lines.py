"""Rows of `jobs` in PostgreSQL's COPY text format: a quarter of the time of binding 25 parameters."""

from collections.abc import Iterable
from typing import Final

from coordinatord.store.index.changes import NewJob

COLUMNS: Final = ("ordinal", *NewJob.__struct_fields__)
POSTED: Final = COLUMNS[
    : COLUMNS.index("state")
]  # what a job that is still open has; the rest are the table's defaults
Numbered = tuple[int, NewJob]  # a job with its ordinal
_NULL: Final = "\\N"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def posted_lines(jobs: Iterable[Numbered]) -> bytes:
    """The columns POSTED."""
    return "".join([f"{ordinal}\t{_posted(job)}\n" for ordinal, job in jobs]).encode()


def job_lines(jobs: Iterable[Numbered]) -> bytes:
    """All columns."""
    return "".join([f"{ordinal}\t{_posted(job)}\t{_since(job)}\n" for ordinal, job in jobs]).encode()


def _posted(j: NewJob) -> str:
    return (
        f"\\\\x{j.job_id.hex()}\t\\\\x{j.owner.hex()}\t\\\\x{j.c.hex()}\t{j.model_id}\t{j.sla_secs}\t{j.rate_in}\t"
        f"{j.rate_out}\t{j.units_in}\t{j.units_out}\t{j.designated}\t{j.expires_at}\t{j.cap}\t{j.fee_bps}\t"
        f"{j.gas_fee}\t{_text(j.task_cid)}\t\\\\x{j.pay_sig.hex()}\t{j.posted_block}\t{j.posted_log}"
    )


def _since(j: NewJob) -> str:
    return (
        f"{j.state}\t{j.ended_because}\t{j.provider_id}\t{j.claimed_at}\t{j.completion_tok}\t{j.cost}\t"
        f"{_NULL if j.result_cid is None else _text(j.result_cid)}"
    )


def _text(value: str) -> str:
    return value if value.isalnum() else value.translate(_ESCAPES)  # a CID is letters and digits
