"""Creating, listing, reading and cancelling batches. `worker.py` processes them."""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Final

import attrs

from common import canonical_json
from common.api import limits, states
from common.api.fields import Choice, Nested, StringPairs, Text, read_object, wire
from common.refusal import Refused
from coordinatord.api.batches import batches_sql
from coordinatord.api.batches.batches_sql import BatchRow, NewBatch
from coordinatord.api.batches.plan import WINDOWS, PlanBody, read_plan
from coordinatord.api.files import files_sql
from coordinatord.api.files.files import ExpiresAfter
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.snapshot_sql import Snapshot
from coordinatord.storage.pins.storage_budgets import UNLIMITED, StorageBudgets

Status = states.BatchStatus
_ID_CHARACTERS: Final = 16_384  # any text: an unknown one is not found


def status_of(batch: BatchRow) -> Status:
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
    counts = batch.counts
    if counts.expanded and counts.completed + counts.failed == counts.total:
        return "finalizing"  # every line has ended, but no worker has noticed yet
    return "in_progress" if batch.in_progress_at is not None else "validating"


def is_cancellable(batch: BatchRow) -> bool:
    """Return True for a batch that may be cancelled. Cancelling again has no effect."""
    return status_of(batch) in ("validating", "in_progress", "cancelling")


ENDPOINTS: Final = ("/v1/responses", "/v1/embeddings")
_METADATA: Final = StringPairs(limits.METADATA_PAIRS, limits.METADATA_KEY_LENGTH, limits.METADATA_VALUE_LENGTH)


@attrs.frozen(slots=True)
class BatchBody:
    """Request for a batch. The batch ends `completion_window` after its creation."""

    input_file_id: str = wire(Text(_ID_CHARACTERS))
    endpoint: str = wire(Choice(ENDPOINTS, "invalid_endpoint"))
    completion_window: str = wire(Choice(tuple(WINDOWS), "invalid_completion_window"))
    metadata: Mapping[str, str] = wire(_METADATA, optional=True, default={})
    output_expires_after: ExpiresAfter | None = wire(
        Nested(ExpiresAfter),
        "how long the output files are kept: accepted where it is the retention period",
        optional=True,
    )


@attrs.frozen(slots=True)
class FoundBatch:
    snapshot: Snapshot
    batch: BatchRow


@attrs.frozen(slots=True)
class Page:
    """Page of batches. `has_more`: there are older batches."""

    snapshot: Snapshot
    batches: list[BatchRow]
    has_more: bool


def read_batch(values: Mapping[str, object]) -> BatchBody | PlanBody:
    """Read a body. A body without an input file requests a plan."""
    return read_plan(values) if values.get("input_file_id") is None else read_object(BatchBody, values)


@attrs.frozen(slots=True)
class BatchService:
    database: Database
    retention_seconds: int
    budgets: StorageBudgets = UNLIMITED

    async def create(self, owner: bytes, body: BatchBody, idempotency_key: str | None) -> BatchRow:
        """Create a batch, or return the one that this owner created with the same key and request."""
        if body.output_expires_after is not None:
            body.output_expires_after.check(self.retention_seconds, "output_expires_after")
        new = NewBatch(
            id=f"batch_{secrets.token_hex(12)}",
            owner=owner,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            window_secs=WINDOWS[body.completion_window],
            metadata=json.dumps(dict(body.metadata), ensure_ascii=False),
            idempotency_key=idempotency_key,
            request_hash=_hash_of(body),
        )
        created = await self.database.transact(lambda connection: self._create(connection, new))
        if created.request_hash != new.request_hash:
            raise Refused(
                "another batch was created with this key and another body", "idempotency-key", "idempotency_key_reused"
            )
        return created

    async def _create(self, connection: Connection, new: NewBatch) -> BatchRow:
        earlier = await self._earlier(connection, new)
        if earlier is not None:
            return earlier
        upload = await files_sql.find(connection, new.input_file_id, new.owner)
        if upload is None or upload.purpose != "batch":
            raise Refused("the batch upload does not exist", "input_file_id", "invalid_input_file")
        created = await batches_sql.create(connection, attrs.evolve(new, lines=upload.lines))
        if created is None:  # another process has just created a batch with this key
            earlier = await self._earlier(connection, new)
            if earlier is None:
                raise AssertionError("a batch with this key exists and is not found")
            return earlier
        if not await files_sql.attach(connection, upload.id, self.retention_seconds):
            raise Refused("the upload has expired", "input_file_id", "invalid_input_file")
        await self.budgets.check(connection, new.owner)
        return created

    async def _earlier(self, connection: Connection, new: NewBatch) -> BatchRow | None:
        """Return the batch with the same key or id, which an earlier attempt may have committed."""
        return await batches_sql.find_created(connection, new.id, new.owner, new.idempotency_key)

    async def find(self, owner: bytes, batch_id: str) -> FoundBatch | None:
        async with self.database.connection() as connection:
            snapshot, batch = await batches_sql.read(connection, batch_id, owner)
        return FoundBatch(snapshot, batch) if batch is not None else None

    async def page(self, owner: bytes, after: str | None, limit: int) -> Page:
        async with self.database.connection() as connection:
            place = None
            if after is not None:
                place = await batches_sql.place_of(connection, after, owner)
                if place is None:
                    raise Refused("after is not the id of one of your batches", "after")
            snapshot, found = await batches_sql.read_page(connection, owner, place, limit + 1)
        return Page(snapshot, found[:limit], has_more=len(found) > limit)

    async def cancel(self, owner: bytes, batch_id: str) -> FoundBatch | None:
        """Stop posting lines of a batch. Its jobs stay as they are. Return None if the batch does not exist."""
        found = await self.find(owner, batch_id)
        if found is None:
            return None
        if found.batch.cancelling_at is not None and is_cancellable(found.batch):
            return found
        async with self.database.connection() as connection:
            if not (is_cancellable(found.batch) and await batches_sql.cancel(connection, batch_id, owner)):
                raise Refused("the batch has ended, or every line of it has", None, "batch_not_cancellable")
        return await self.find(owner, batch_id)


def _hash_of(body: BatchBody) -> bytes:
    asked = [body.input_file_id, body.endpoint, body.completion_window, dict(body.metadata)]
    return hashlib.sha256(canonical_json.canonical(asked)).digest()
