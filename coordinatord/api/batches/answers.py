"""Conversion of batch rows to the batches that the routes return."""

import json
from typing import Any, Final

import msgspec

from common.api.batches import Batch, BatchAsOf, BatchErrors, BatchList, BatchTerms, RequestCounts
from coordinatord.api.batches.batches import batch_status
from coordinatord.api.batches.batches_sql import BatchRow

_COMMON_FIELDS: Final = (
    *("id", "endpoint", "input_file_id", "completion_window", "output_file_id", "error_file_id"),
    *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at"),
    *("cancelling_at", "cancelled_at"),
)


def _common_members(row: BatchRow) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _COMMON_FIELDS},
        "errors": msgspec.json.decode(row.errors, type=BatchErrors) if row.errors is not None else None,
        "status": batch_status(row),
        "request_counts": RequestCounts(row.completed, row.failed, row.total),
        "metadata": json.loads(row.metadata),
        "svc": BatchTerms(row.completion_window),
    }


def batch_shape(row: BatchRow) -> Batch:
    return Batch(**_common_members(row))


def batch_shape_as_of(row: BatchRow, block_number: int) -> BatchAsOf:
    return BatchAsOf(**_common_members(row), as_of_block=str(block_number))


def batch_list_shape(rows: list[BatchRow], block_number: int, *, has_more: bool) -> BatchList:
    return BatchList(
        object="list",
        data=[batch_shape(row) for row in rows],
        first_id=rows[0].id if rows else None,
        last_id=rows[-1].id if rows else None,
        has_more=has_more,
        as_of_block=str(block_number),
    )
