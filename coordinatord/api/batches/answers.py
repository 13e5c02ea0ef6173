"""Batches as the routes return them."""

import json

import msgspec

from common.api.batches import Batch, BatchAsOf, BatchErrors, BatchList, BatchTerms, RequestCounts
from coordinatord.api.batches.batches import status_of
from coordinatord.api.batches.batches_sql import BatchRow


def batch(row: BatchRow) -> Batch:
    counts = row.counts
    return Batch(
        id=row.id,
        endpoint=row.endpoint,
        errors=msgspec.json.decode(row.errors, type=BatchErrors) if row.errors is not None else None,
        input_file_id=row.input_file_id,
        completion_window=row.completion_window,
        status=status_of(row),
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        created_at=row.created_at,
        in_progress_at=row.in_progress_at,
        expires_at=row.expires_at,
        finalizing_at=row.finalizing_at,
        completed_at=row.completed_at,
        failed_at=row.failed_at,
        expired_at=row.expired_at,
        cancelling_at=row.cancelling_at,
        cancelled_at=row.cancelled_at,
        request_counts=RequestCounts(counts.completed, counts.failed, counts.total),
        metadata=json.loads(row.metadata),
        svc=BatchTerms(row.completion_window),
    )


def batch_as_of(row: BatchRow, block_number: int) -> BatchAsOf:
    plain = batch(row)
    members = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return BatchAsOf(**members, as_of_block=str(block_number))


def batch_list(rows: list[BatchRow], block_number: int, *, has_more: bool) -> BatchList:
    return BatchList(
        object="list",
        data=[batch(row) for row in rows],
        first_id=rows[0].id if rows else None,
        last_id=rows[-1].id if rows else None,
        has_more=has_more,
        as_of_block=str(block_number),
    )
