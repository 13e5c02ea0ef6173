"""Keys of content in stores that only know content ids, and the lock under which the last key removes the content.

Another client may store the bytes of someone's container under different keys. So content stays while any key holds it:
a key is recorded before its content is stored, and content is removed under a lock that excludes new keys for it. A
client that stores the content later uploads it again.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from coordinatord.storage.database.connections import Connection, Database

_REPLACED: Final = "replaced/"
_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('pinned:' || $1, 0))"


class KeyBook(Protocol):
    """Map from keys to content ids."""

    async def cid_of(self, key: str) -> str | None: ...

    async def pin(self, key: str, cid: str) -> str | None:
        """Record that the key will hold this content.

        If the key held other content, return the key under which the old content is kept. Unpin that key once the new
        content is stored.
        """
        ...

    async def unpin(self, key: str, remove: Callable[[str], Awaitable[None]]) -> None:
        """Forget the key and its replaced content. Remove content that is under no other key.

        Forget nothing when `remove` fails.
        """
        ...


@attrs.frozen(slots=True)
class PinnedKeys:
    """Keys in the database, shared by all processes."""

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
                # In byte order, '0' is the first character after '/'.
                "select key, cid from pinned_keys where key = $1 or (key >= $2 and key < $3)",
                key,
                f"{_REPLACED}{key}/",
                f"{_REPLACED}{key}0",
            )
        # One at a time, because holding two locks could deadlock.
        for row in rows:
            await self._forget(row["key"], row["cid"], remove)

    async def _forget(self, key: str, cid: str, remove: Callable[[str], Awaitable[None]]) -> None:
        async def body(connection: Connection) -> None:
            await connection.execute(_LOCK, cid)
            await connection.execute("delete from pinned_keys where key = $1 and cid = $2", key, cid)
            held = await connection.fetchval("select exists (select from pinned_keys where cid = $1)", cid)
            if not held:
                await remove(cid)

        await self.database.transact(body)
