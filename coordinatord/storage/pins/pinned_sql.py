"""Map keys to content ids, for stores that know only content ids. Content is removed together with its last key.

Two clients may store the same bytes under different keys. So content stays while any key holds it: a key is recorded
before its content is stored, and content is removed under a lock that excludes new keys for it. A client that stores
the content after its removal uploads it again.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from coordinatord.storage.database.connections import Connection, Database

_REPLACED_PREFIX: Final = "replaced/"
_LOCK_CONTENT: Final = "select pg_advisory_xact_lock(hashtextextended('pinned:' || $1, 0))"


class KeyMap(Protocol):
    """Map from keys to content ids."""

    async def find_cid(self, key: str) -> str | None: ...

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

    async def find_cid(self, key: str) -> str | None:
        async with self.database.connection() as connection:
            found: str | None = await connection.fetchval("select cid from pinned_keys where key = $1", key)
        return found

    async def pin(self, key: str, cid: str) -> str | None:
        async def body(connection: Connection) -> str | None:
            await connection.execute(_LOCK_CONTENT, cid)
            before = await connection.fetchval("select cid from pinned_keys where key = $1 for update", key)
            replaced = None if before in (None, cid) else f"{_REPLACED_PREFIX}{key}/{before}"
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
                f"{_REPLACED_PREFIX}{key}/",
                f"{_REPLACED_PREFIX}{key}0",
            )
        # One transaction for each, because holding two locks could deadlock.
        for row in rows:
            await self._forget(row["key"], row["cid"], remove)

    async def _forget(self, key: str, cid: str, remove: Callable[[str], Awaitable[None]]) -> None:
        async def body(connection: Connection) -> None:
            await connection.execute(_LOCK_CONTENT, cid)
            await connection.execute("delete from pinned_keys where key = $1 and cid = $2", key, cid)
            in_use = await connection.fetchval("select exists (select from pinned_keys where cid = $1)", cid)
            if not in_use:
                await remove(cid)

        await self.database.transact(body)
