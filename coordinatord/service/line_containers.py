"""Containers that lines bring along, stored many at a time before their posts are queued."""

import hashlib
from collections.abc import Sequence
from typing import Final

import anyio
import attrs
from anyio import to_thread

from coordinatord.pins.store import PinStore
from coordinatord.service.containers import container_key
from coordinatord.store import batch_objects
from coordinatord.store.batch_objects import NewObject
from coordinatord.store.database import Database
from coordinatord.trouble import Retryable

_AT_ONCE: Final = 16  # requests to the store: half of what a process keeps open


@attrs.frozen(slots=True)
class LineContainers:
    database: Database
    pins: PinStore

    async def store(self, contents: Sequence[tuple[bytes, bytes, bytes]]) -> dict[bytes, str]:
        """Content ids of (job id, container, owner) each. They count for their owners and are not refused: the file
        that they came in was. They stay held until the caller releases them with its own
        writing; after a crash the janitor decides. Raises Retryable when not all of them are stored."""
        if not contents:
            return {}
        new = await to_thread.run_sync(_objects_of, contents)
        async with self.database.connection() as connection:
            known = await batch_objects.hold(connection, new)
        stored: dict[str, str] = {}
        troubles: list[Retryable] = []
        left = zip(new, contents, strict=True)

        async def put_some() -> None:
            for one, (_, content, _) in left:
                try:
                    stored[one.key] = await self._stored(one.key, content, known)
                except Retryable as trouble:
                    troubles.append(trouble)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(_AT_ONCE, len(contents))):
                    tasks.start_soon(put_some)
        finally:
            if stored:  # what was stored need not be stored again
                with anyio.move_on_after(10, shield=True):
                    async with self.database.connection() as connection:
                        await batch_objects.set_cids(connection, stored)
        if troubles:
            raise troubles[0]
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
