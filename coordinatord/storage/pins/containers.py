"""Store containers and results before their op goes to the chain, then keep or remove them according to the op's
outcome.

`hold_content` covers one attempt. While it runs, a row records that the content is held. The caller reports the
outcome. Without a report (after an error or a crash), the janitor decides later, because a retry of the request is
likely and would find the content stored.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
import attrs
import structlog
from anyio import to_thread

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.batched_reads import BatchedReads
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.objects_sql import HeldObject, NewObject
from coordinatord.storage.pins.storage_budgets import UNLIMITED, StorageBudgets
from coordinatord.storage.pins.store import PinStore

log = structlog.get_logger(__name__)

# Time to wait for a running removal of the same key.
_REMOVAL_TIMEOUT_S: Final = 5.0
# Smaller content is hashed faster than a thread starts.
_INLINE_HASH_BYTES: Final = 1 << 16
_MAX_ROWS_PER_STATEMENT: Final = 256


@attrs.frozen(slots=True, eq=False)
class _HoldRequest:
    """Request to hold an object. Requests are compared by identity, because two may name the same key."""

    new_object: NewObject


@attrs.frozen(slots=True, eq=False)
class _EndedHold:
    """Hold that ends because its op took effect."""

    key: str


class _RowWriter:
    """Writes the database rows of stored content in batches, except holds that a storage budget limits.

    All settles of a block arrive at once, and all settles of a provider update the same sum. If each row were written
    alone, every write would wait for the previous transaction.
    """

    def __init__(self, database: Database, retention_seconds: int) -> None:
        self._retention = retention_seconds
        self.holds: BatchedReads[_HoldRequest, HeldObject | None] = BatchedReads(
            database, _hold_all, max_keys=_MAX_ROWS_PER_STATEMENT
        )
        self.cids: BatchedReads[tuple[str, str], None] = BatchedReads(
            database, _set_cids, max_keys=_MAX_ROWS_PER_STATEMENT
        )
        self.ended_holds: BatchedReads[_EndedHold, None] = BatchedReads(
            database, self._retain_objects, max_keys=_MAX_ROWS_PER_STATEMENT
        )

    async def _retain_objects(self, database: Database, ended: list[_EndedHold]) -> dict[_EndedHold, None]:
        """End these holds, and keep their objects for the retention period. Return None for each hold, as BatchedReads
        requires."""
        async with database.connection() as connection:
            await objects_sql.attach_objects(connection, Counter(hold.key for hold in ended), self._retention)
        return dict.fromkeys(ended)


async def _hold_all(database: Database, requests: list[_HoldRequest]) -> dict[_HoldRequest, HeldObject | None]:
    """Hold each key once per statement, because one statement can change a row only once."""
    answers: dict[_HoldRequest, HeldObject | None] = {}
    while remaining := [request for request in requests if request not in answers]:
        by_key = {request.new_object.key: request for request in remaining}
        new_objects = [request.new_object for request in by_key.values()]
        held = await database.transact(partial(objects_sql.hold_objects, new_objects=new_objects))
        answers |= {request: HeldObject(held[key]) if key in held else None for key, request in by_key.items()}
    return answers


async def _set_cids(database: Database, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], None]:
    async with database.connection() as connection:
        await objects_sql.set_cids(connection, dict(pairs))
    return dict.fromkeys(pairs)


@attrs.define(slots=True)
class ContentHold:
    """One attempt's hold on a stored object."""

    key: str
    cid: str
    # True if the op took effect, False if it was refused, None if unknown.
    took_effect: bool | None = None

    def mark_effective(self) -> None:
        self.took_effect = True

    def mark_refused(self) -> None:
        self.took_effect = False


class Containers:
    """Stores containers and results, and holds each while its op is pending."""

    def __init__(
        self, database: Database, pins: PinStore, retention_seconds: int, budgets: StorageBudgets = UNLIMITED
    ) -> None:
        self._database = database
        self._pins = pins
        self._rows = _RowWriter(database, retention_seconds)
        self._budgets = budgets

    @asynccontextmanager
    async def hold_content(
        self, key: str, subject: bytes, content: bytes, owner: bytes, *, check_budget: bool
    ) -> AsyncIterator[ContentHold]:
        """Store `content` under `key`, and hold it while the block runs.

        With `check_budget`, raise Retryable `busy` when the content exceeds the owner's budget.
        """
        small = len(content) <= _INLINE_HASH_BYTES
        sha256 = (hashlib.sha256(content) if small else await to_thread.run_sync(hashlib.sha256, content)).digest()
        held = await self._hold_key(NewObject(key, subject, len(content), sha256, owner), check_budget=check_budget)
        hold = ContentHold(key, "")
        try:
            hold.cid = await self._store_content(key, content, held)
            yield hold
        finally:
            # A hold must also end when the request is cancelled.
            with anyio.move_on_after(10, shield=True):
                await self._release(hold)

    async def _hold_key(self, new_object: NewObject, *, check_budget: bool) -> HeldObject:
        deadline = anyio.current_time() + _REMOVAL_TIMEOUT_S
        while True:
            # A cancelled caller cannot withdraw from a batched statement. Shield the caller, so that it learns of its
            # hold and ends it.
            with anyio.CancelScope(shield=not check_budget):
                held = await (
                    self._hold_within_budget(new_object)
                    if check_budget
                    else self._rows.holds.get(_HoldRequest(new_object))
                )
            if held is not None:
                return held
            if anyio.current_time() > deadline:
                raise Retryable(
                    "pinner_unavailable",
                    "the stored object of this request is being removed; try again",
                    "store_unavailable",
                    2,
                )
            await anyio.sleep(0.1)

    async def _hold_within_budget(self, new_object: NewObject) -> HeldObject | None:
        async def hold_and_check(connection: Connection) -> HeldObject | None:
            held = await objects_sql.hold_objects(connection, [new_object])
            if new_object.key not in held:
                return None
            await self._budgets.check(connection, new_object.owner)
            return HeldObject(held[new_object.key])

        return await self._database.transact(hold_and_check)

    async def _store_content(self, key: str, content: bytes, held: HeldObject) -> str:
        if held.cid is not None and await self._pins.holds(key):
            return held.cid
        pinned = await self._pins.put(key, content)
        await self._rows.cids.get((key, pinned.cid))
        return pinned.cid

    async def _release(self, hold: ContentHold) -> None:
        try:
            if hold.took_effect:
                await self._rows.ended_holds.get(_EndedHold(hold.key))
                return
            async with self._database.connection() as connection:
                if hold.took_effect is None:
                    await objects_sql.release_hold(connection, hold.key)
                    return
                unneeded = await objects_sql.lease_removal(connection, hold.key)
            if unneeded:
                await self.remove(hold.key)
        except Retryable as error:
            # The janitor handles the row when it expires.
            log.warning("object left to the janitor", key=hold.key, reason=error.message)

    async def remove(self, key: str) -> None:
        """Remove an object whose removal the caller has leased."""
        await self._pins.delete(key)
        async with self._database.connection() as connection:
            await objects_sql.delete_object_row(connection, key)


def container_key(job_id: bytes) -> str:
    """Return the key of a job's container. The job's id is enough, because the id commits to the container's
    content."""
    return f"containers/{job_id.hex()}"


def result_key(job_id: bytes, result: bytes) -> str:
    """Return the key of a result. The key contains the result's hash, because a job does not commit to a result, and a
    later attempt must not overwrite the settled result."""
    return f"results/{job_id.hex()}/{hashlib.sha256(result).hexdigest()}"
