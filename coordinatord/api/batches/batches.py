"""Creating, listing, reading and cancelling batches. `worker.py` processes them."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Final

import attrs

from common import canonical_json
from common.api import limits, states
from common.api.fields import Choice, NestedObject, StringPairs, Text, body_field, read_object
from common.refusal import Refused
from coordinatord.api.batches import batches_sql
from coordinatord.api.batches.batches_sql import BatchRow, NewBatch
from coordinatord.api.batches.plan import BATCH_WINDOWS_S, PlanBody, read_plan
from coordinatord.api.files import files_sql
from coordinatord.api.files.files import ExpiresAfter
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.snapshot_sql import Snapshot
from coordinatord.storage.pins.storage_budgets import UNLIMITED, StorageBudgets

BatchAtSnapshot = tuple[Snapshot, BatchRow]
_MAX_ID_CHARACTERS: Final = 16_384  # an id may be any text; an unknown id is not found


def batch_status(batch: BatchRow) -> states.BatchStatus:
    """Return the status of a batch, from the times in its row and from its lines."""
    for status, at in (
        ("failed", batch.failed_at),
        ("completed", batch.completed_at),
        ("expired", batch.expired_at),
        ("cancelled", batch.cancelled_at),
        ("cancelling", batch.cancelling_at),
    ):
        if at is not None:
            return status  # type: ignore[return-value] # mypy sees a plain string
    if batch.finalizing_at is not None:
        return "finalizing"
    if batch.expanded and batch.completed + batch.failed == batch.total:
        return "finalizing"  # every line has ended, but no worker has noticed yet
    return "in_progress" if batch.in_progress_at is not None else "validating"


def is_cancellable(batch: BatchRow) -> bool:
    """Return True if the batch may be cancelled. A batch that is being cancelled may be cancelled again without
    effect."""
    return batch_status(batch) in ("validating", "in_progress", "cancelling")


ENDPOINTS: Final = ("/v1/responses", "/v1/embeddings")
_METADATA_FIELD: Final = StringPairs(
    limits.MAX_METADATA_PAIRS, limits.MAX_METADATA_KEY_LENGTH, limits.MAX_METADATA_VALUE_LENGTH
)


@attrs.frozen(slots=True)
class BatchBody:
    """Request for a batch. The batch expires `completion_window` after its creation."""

    input_file_id: str = body_field(Text(_MAX_ID_CHARACTERS))
    endpoint: str = body_field(Choice(ENDPOINTS, "invalid_endpoint"))
    completion_window: str = body_field(Choice(tuple(BATCH_WINDOWS_S), "invalid_completion_window"))
    metadata: Mapping[str, str] = body_field(_METADATA_FIELD, optional=True, default={})
    output_expires_after: ExpiresAfter | None = body_field(
        NestedObject(ExpiresAfter),
        "retention of the output files; must equal the coordinator's retention period",
        optional=True,
    )


def read_batch(values: Mapping[str, object]) -> BatchBody | PlanBody:
    """Read the body of POST /v1/batches. A body without an input file requests a plan."""
    return read_plan(values) if values.get("input_file_id") is None else read_object(BatchBody, values)


@attrs.frozen(slots=True)
class BatchService:
    database: Database
    retention_seconds: int
    budgets: StorageBudgets = UNLIMITED

    async def create(self, owner: bytes, body: BatchBody, idempotency_key: str | None) -> BatchRow:
        """Create a batch, or return the batch that this owner created before with the same key and request."""
        if body.output_expires_after is not None:
            body.output_expires_after.check(self.retention_seconds, "output_expires_after")
        new_batch = NewBatch(
            id=f"batch_{secrets.token_hex(12)}",
            owner=owner,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            window_secs=BATCH_WINDOWS_S[body.completion_window],
            metadata=json.dumps(dict(body.metadata), ensure_ascii=False),
            idempotency_key=idempotency_key,
            request_hash=_request_hash(body),
        )
        created = await self.database.transact(lambda connection: self._create(connection, new_batch))
        if created.request_hash != new_batch.request_hash:
            raise Refused(
                "you created a batch with this key and a different body; send a new key, or the earlier body",
                "idempotency-key",
                "idempotency_key_reused",
            )
        return created

    async def _create(self, connection: Connection, new_batch: NewBatch) -> BatchRow:
        # An earlier attempt of this transaction may have committed, although its answer was lost.
        key = (new_batch.id, new_batch.owner, new_batch.idempotency_key)
        if (earlier := await batches_sql.find_created(connection, *key)) is not None:
            return earlier
        upload = await files_sql.find_file(connection, new_batch.input_file_id, new_batch.owner)
        if upload is None or upload.purpose != "batch":
            raise Refused(
                "input_file_id must be one of your uploads with the purpose batch",
                "input_file_id",
                "invalid_input_file",
            )
        created = await batches_sql.insert_batch(connection, attrs.evolve(new_batch, lines=upload.lines))
        if created is None:  # another process has just created a batch with this key
            earlier = await batches_sql.find_created(connection, *key)
            if earlier is None:
                raise AssertionError("the batch that has this idempotency key was not found")
            return earlier
        if not await files_sql.attach_file(connection, upload.id, self.retention_seconds):
            raise Refused("the input file has expired; upload it again", "input_file_id", "invalid_input_file")
        await self.budgets.check(connection, new_batch.owner)
        return created

    async def find(self, owner: bytes, batch_id: str) -> BatchAtSnapshot | None:
        """Return the batch and the snapshot at which it was read, or None if this owner has no such batch."""
        async with self.database.connection() as connection:
            snapshot, batch = await batches_sql.read_batch(connection, batch_id, owner)
        return (snapshot, batch) if batch is not None else None

    async def list_page(self, owner: bytes, after: str | None, limit: int) -> tuple[Snapshot, list[BatchRow], bool]:
        """Return the snapshot, a page of batches, newest first, and True if there are older batches."""
        async with self.database.connection() as connection:
            position = None
            if after is not None:
                position = await batches_sql.read_list_position(connection, after, owner)
                if position is None:
                    raise Refused("`after` must be the id of one of your batches", "after")
            snapshot, found = await batches_sql.read_page(connection, owner, position, limit + 1)
        return snapshot, found[:limit], len(found) > limit

    async def cancel(self, owner: bytes, batch_id: str) -> BatchAtSnapshot | None:
        """Stop posting lines of a batch. Jobs that were posted continue. Return None if the batch does not exist."""
        found = await self.find(owner, batch_id)
        if found is None:
            return None
        _, batch = found
        if batch.cancelling_at is not None and is_cancellable(batch):
            return found
        async with self.database.connection() as connection:
            if not (is_cancellable(batch) and await batches_sql.cancel_batch(connection, batch_id, owner)):
                raise Refused("the batch has ended, or all its lines have ended", None, "batch_not_cancellable")
        return await self.find(owner, batch_id)


def _request_hash(body: BatchBody) -> bytes:
    request_fields = [body.input_file_id, body.endpoint, body.completion_window, dict(body.metadata)]
    return hashlib.sha256(canonical_json.canonical(request_fields)).digest()
