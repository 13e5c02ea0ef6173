"""Containers and results on their way to the chain: stored first, then kept or removed as their op ends.

`holding` is the whole life of one attempt. Inside it the content is in the store under a row that says so; the caller
tells how the op ended, and when it tells nothing (an error, a crash) the janitor decides later: the same request is
likely to come again soon, and then finds its content stored.
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

_PATIENCE: Final = 5.0  # seconds to wait for a removal of the same key to end
_SMALL: Final = 1 << 16  # bytes that are hashed in less time than the way to a thread takes
_ROWS_AT_ONCE: Final = 256  # of one statement


@attrs.frozen(slots=True, eq=False)
class _Wanted:
    """A hold that is asked for: each is one of its own, as two may be of one key."""

    new: NewObject


@attrs.frozen(slots=True, eq=False)
class _HeldUntilNow:
    """A hold that ends because its op took effect."""

    key: str


class _Rows:
    """Rows of content that nobody bounds, written together with those of others.

    A block's settles come at once, and all add to the sum that is kept of one provider's results: one by one, each
    waited for the transaction of the one before."""

    def __init__(self, database: Database, retention_seconds: int) -> None:
        self._retention = retention_seconds
        self.holds: BatchedReads[_Wanted, HeldObject | None] = BatchedReads(database, _hold_all, most=_ROWS_AT_ONCE)
        self.cids: BatchedReads[tuple[str, str], None] = BatchedReads(database, _set_cids, most=_ROWS_AT_ONCE)
        self.kept: BatchedReads[_HeldUntilNow, None] = BatchedReads(database, self._keep_all, most=_ROWS_AT_ONCE)

    async def _keep_all(self, database: Database, kept: list[_HeldUntilNow]) -> dict[_HeldUntilNow, None]:
        async with database.connection() as connection:
            await objects_sql.attach(connection, Counter(one.key for one in kept), self._retention)
        return dict.fromkeys(kept)


async def _hold_all(database: Database, wanted: list[_Wanted]) -> dict[_Wanted, HeldObject | None]:
    """A key that several want is held by one statement for each: one statement touches a row once."""
    answers: dict[_Wanted, HeldObject | None] = {}
    while left := [one for one in wanted if one not in answers]:
        by_key = {one.new.key: one for one in left}
        new = [one.new for one in by_key.values()]
        known = await database.transact(partial(objects_sql.hold_many, new=new))
        answers |= {one: HeldObject(known[key]) if key in known else None for key, one in by_key.items()}
    return answers


async def _set_cids(database: Database, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], None]:
    async with database.connection() as connection:
        await objects_sql.set_cids(connection, dict(pairs))
    return dict.fromkeys(pairs)


@attrs.define(slots=True)
class Holding:
    """One attempt's hold on a stored object."""

    key: str
    cid: str
    ended: bool | None = None  # True: took effect; False: refused; None: not known

    def took_effect(self) -> None:
        self.ended = True

    def was_refused(self) -> None:
        self.ended = False


class Containers:
    """Stored containers and results, each held while its op is under way."""

    def __init__(
        self, database: Database, pins: PinStore, retention_seconds: int, budgets: StorageBudgets = UNLIMITED
    ) -> None:
        self._database = database
        self._pins = pins
        self._rows = _Rows(database, retention_seconds)
        self._budgets = budgets

    @asynccontextmanager
    async def holding(
        self, key: str, subject: bytes, content: bytes, owner: bytes, *, bounded: bool
    ) -> AsyncIterator[Holding]:
        """Store `content` under `key` and hold it while the block runs. Retryable `busy` when it is `bounded` and more
        than the owner's budget allows."""
        small = len(content) <= _SMALL
        sha256 = (hashlib.sha256(content) if small else await to_thread.run_sync(hashlib.sha256, content)).digest()
        known = await self._hold(NewObject(key, subject, len(content), sha256, owner), bounded=bounded)
        holding = Holding(key, "")
        try:
            holding.cid = await self._stored(key, content, known)
            yield holding
        finally:
            # Whatever cancelled the request, its hold must not stay behind.
            with anyio.move_on_after(10, shield=True):
                await self._let_go(holding)

    async def _hold(self, new: NewObject, *, bounded: bool) -> HeldObject:
        deadline = anyio.current_time() + _PATIENCE
        while True:
            # A caller that goes away takes back no statement of many: it has to know of its hold, to let go.
            with anyio.CancelScope(shield=not bounded):
                held = await (self._hold_within_budget(new) if bounded else self._rows.holds.get(_Wanted(new)))
            if held is not None:
                return held
            if anyio.current_time() > deadline:
                raise Retryable(
                    "pinner_unavailable", "the same object is being removed; try again", "store_unavailable", 2
                )
            await anyio.sleep(0.1)

    async def _hold_within_budget(self, new: NewObject) -> HeldObject | None:
        async def body(connection: Connection) -> HeldObject | None:
            known = await objects_sql.hold_many(connection, [new])
            if new.key not in known:
                return None
            await self._budgets.check(connection, new.owner)
            return HeldObject(known[new.key])

        return await self._database.transact(body)

    async def _stored(self, key: str, content: bytes, known: HeldObject) -> str:
        if known.cid is not None and await self._pins.holds(key):
            return known.cid
        pinned = await self._pins.put(key, content)
        await self._rows.cids.get((key, pinned.cid))
        return pinned.cid

    async def _let_go(self, holding: Holding) -> None:
        try:
            if holding.ended:
                await self._rows.kept.get(_HeldUntilNow(holding.key))
                return
            async with self._database.connection() as connection:
                if holding.ended is None:
                    await objects_sql.release(connection, holding.key)
                    return
                unneeded = await objects_sql.lease_removal(connection, holding.key)
            if unneeded:
                await self.remove(holding.key)
        except Retryable as error:
            # The row stands with its deadline: the janitor comes to it.
            log.warning("object left to the janitor", key=holding.key, reason=error.message)

    async def remove(self, key: str) -> None:
        """Remove an object whose removal was leased."""
        await self._pins.delete(key)
        async with self._database.connection() as connection:
            await objects_sql.forget(connection, key)


def container_key(job_id: bytes) -> str:
    """One per job: the commitment allows no second content."""
    return f"containers/{job_id.hex()}"


def result_key(job_id: bytes, result: bytes) -> str:
    """One per content: a result is not committed to, and a later attempt must not overwrite what was settled."""
    return f"results/{job_id.hex()}/{hashlib.sha256(result).hexdigest()}"
