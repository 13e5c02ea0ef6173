"""Keys of content in stores that know content ids alone, and the lock under which the last of them takes the content
along.

Strangers may bring the bytes of somebody else's container under keys of their own. So content stays as long as any key
holds it: a key is written down before its content is stored, and content is removed under a lock that no new key of it
passes. Who stores it after that stores it anew.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from coordinatord.storage.database.connections import Connection, Database

_REPLACED: Final = "replaced/"
_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('pinned:' || $1, 0))"


class KeyBook(Protocol):
    """Which key holds which content."""

    async def cid_of(self, key: str) -> str | None: ...

    async def pin(self, key: str, cid: str) -> str | None:
        """Write down that the key is to hold this content. Of a key that held another, that is kept under the key that
        is returned, to be unpinned once the new content is stored."""
        ...

    async def unpin(self, key: str, remove: Callable[[str], Awaitable[None]]) -> None:
        """Forget the key, and what it held before, each with its content where no other key holds that. Nothing is
        forgotten when `remove` fails."""
        ...


@attrs.frozen(slots=True)
class PinnedKeys:
    """In the database, for all processes."""

    database: Database

    async def cid_of(self, key: str) -> str | None:
        async with self.database.connection() as connection:
            found: str | None = await connection.fetchval("select cid from pinned_keys where key = $1", key)
        return found

    async def pin(self, key: str, cid: str) -> str | None:
        async def body(connection: Connection) -> str | None:
            await connection.execute(_LOCK, cid)
            before = await connection.fetchval("select cid from pinned_keys where key = $1 for update", key)
            replaced = None if before in (None, cid) else f"{_REPLACED}{key}/{before}"
            if replaced is not None:
                await connection.execute(
                    "insert into pinned_keys (key, cid) values ($1, $2) on conflict do nothing", replaced, before
                )
            await connection.execute(
                "insert into pinned_keys (key, cid) values ($1, $2) on conflict (key) do update set cid = excluded.cid",
                key,
                cid,
            )
            return replaced

        return await self.database.transact(body)

    async def unpin(self, key: str, remove: Callable[[str], Awaitable[None]]) -> None:
        async with self.database.connection() as connection:
            rows = await connection.fetch(
                # Of keys in the order of bytes, '0' is the first that does not begin with '/'.
                "select key, cid from pinned_keys where key = $1 or (key >= $2 and key < $3)",
                key,
                f"{_REPLACED}{key}/",
                f"{_REPLACED}{key}0",
            )
        for row in rows:  # one after the other: two locks at once may wait for each other
            await self._forget(row["key"], row["cid"], remove)

    async def _forget(self, key: str, cid: str, remove: Callable[[str], Awaitable[None]]) -> None:
        async def body(connection: Connection) -> None:
            await connection.execute(_LOCK, cid)
            await connection.execute("delete from pinned_keys where key = $1 and cid = $2", key, cid)
            held = await connection.fetchval("select exists (select from pinned_keys where cid = $1)", cid)
            if not held:
                await remove(cid)

        await self.database.transact(body)
