"""Containers of lines in the pin store."""

import hashlib
from collections.abc import Sequence
from typing import Final

import anyio
import attrs
from anyio import to_thread

from coordinatord.base.errors import Retryable
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins import objects_sql
from coordinatord.storage.pins.containers import container_key
from coordinatord.storage.pins.objects_sql import NewObject
from coordinatord.storage.pins.store import PinStore

MAX_REQUESTS: Final = 16  # to the store: half of the connections that a process keeps open


@attrs.frozen(slots=True)
class LineContainers:
    """Stores the inline containers of batch lines, in parallel, before the relayer posts the lines."""

    database: Database
    pins: PinStore

    async def store(self, contents: Sequence[tuple[bytes, bytes, bytes]]) -> dict[bytes, str]:
        """Store (job id, container, owner) each. Return the content ids by job. Raise Retryable unless all are stored.

        The containers count towards their owners' budgets but no budget refuses them, because their file was accepted.
        They stay held until the caller releases them in its own transaction. After a crash the janitor decides."""
        if not contents:
            return {}
        new = await to_thread.run_sync(_objects_of, contents)
        async with self.database.connection() as connection:
            known = await objects_sql.hold_many(connection, new)
        stored: dict[str, str] = {}
        errors: list[Retryable] = []
        left = zip(new, contents, strict=True)

        async def put_some() -> None:
            for one, (_, content, _) in left:
                try:
                    stored[one.key] = await self._stored(one.key, content, known)
                except Retryable as error:
                    errors.append(error)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(MAX_REQUESTS, len(contents))):
                    tasks.start_soon(put_some)
        finally:
            if stored:  # the next attempt skips stored containers
                with anyio.move_on_after(10, shield=True):
                    async with self.database.connection() as connection:
                        await objects_sql.set_cids(connection, stored)
        if errors:
            raise errors[0]
        return {job_id: stored[container_key(job_id)] for job_id, _, _ in contents}

    async def _stored(self, key: str, content: bytes, known: dict[str, str | None]) -> str:
        if key not in known:
            raise Retryable("pinner_unavailable", "the same object is being removed; try again", "store_unavailable", 2)
        cid = known[key]
        if cid is not None and await self.pins.holds(key):
            return cid
        return (await self.pins.put(key, content)).cid


def _objects_of(contents: Sequence[tuple[bytes, bytes, bytes]]) -> list[NewObject]:
    return [
        NewObject(container_key(job_id), job_id, len(content), hashlib.sha256(content).digest(), owner)
        for job_id, content, owner in contents
    ]
