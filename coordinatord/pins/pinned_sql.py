"""Keys of content in stores that know content ids alone, and the lock under which the last of them takes the content
along.

Strangers may bring the bytes of somebody else's container under keys of their own. So content stays as long as any key
holds it: a key is written down before its content is stored, and content is removed under a lock that no new key of it
passes. Who stores it after that stores it anew.
"""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import attrs

from coordinatord.database.connections import Connection, Database

_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('pinned:' || $1, 0))"


class KeyBook(Protocol):
    """Which key holds which content."""

    async def cid_of(self, key: str) -> str | None: ...

    async def pin(self, key: str, cid: str) -> str | None: ...

    async def unpin(self, key: str, remove: Callable[[str], Awaitable[None]]) -> None: ...

    async def drop(self, cid: str, remove: Callable[[str], Awaitable[None]]) -> None: ...


@attrs.frozen(slots=True)
class PinnedKeys:
    """In the database, for all processes."""

    database: Database

    async def cid_of(self, key: str) -> str | None:
        async with self.database.connection() as connection:
            found: str | None = await connection.fetchval("select cid from pinned_keys where key = $1", key)
        return found

    async def pin(self, key: str, cid: str) -> str | None:
        """Write down that the key is to hold this content; returns the content that it held, if that is another."""

        async def body(connection: Connection) -> str | None:
            await connection.execute(_LOCK, cid)
            before: str | None = await connection.fetchval("select cid from pinned_keys where key = $1 for update", key)
            await connection.execute(
                "insert into pinned_keys (key, cid) values ($1, $2) on conflict (key) do update set cid = excluded.cid",
                key,
                cid,
            )
            return before if before != cid else None

        return await self.database.transact(body)

    async def unpin(self, key: str, remove: Callable[[str], Awaitable[None]]) -> None:
        """Forget the key, with its content where no other key holds that. Nothing is forgotten when `remove` fails."""
        cid = await self.cid_of(key)
        if cid is None:
            return

        async def body(connection: Connection) -> None:
            await connection.execute(_LOCK, cid)
            await connection.execute("delete from pinned_keys where key = $1 and cid = $2", key, cid)
            await self._remove_unheld(connection, cid, remove)

        await self.database.transact(body)

    async def drop(self, cid: str, remove: Callable[[str], Awaitable[None]]) -> None:
        """Remove content that a key held before, unless another does."""

        async def body(connection: Connection) -> None:
            await connection.execute(_LOCK, cid)
            await self._remove_unheld(connection, cid, remove)

        await self.database.transact(body)

    async def _remove_unheld(self, connection: Connection, cid: str, remove: Callable[[str], Awaitable[None]]) -> None:
        held = await connection.fetchval("select exists (select from pinned_keys where cid = $1)", cid)
        if not held:
            await remove(cid)
