"""Storage of the inline containers of batch lines in the pin store."""

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

MAX_CONCURRENT_PUTS: Final = 16  # half of the connections that a process keeps open to the pin store


@attrs.frozen(slots=True)
class LineContainers:
    """Stores the inline containers of batch lines, in parallel, before the relayer posts the lines."""

    database: Database
    pins: PinStore

    async def store(self, contents: Sequence[tuple[bytes, bytes, bytes]]) -> dict[bytes, str]:
        """Store the container of each (job id, container, owner). Return the content ids by job. Raise Retryable if any
        container could not be stored.

        The containers count towards their owners' storage budgets. A full budget does not reject them, because the
        coordinator has already accepted their file. The containers stay held, and so are not removed, until the caller
        releases them in its transaction. If the process crashes before that, the janitor later decides whether to
        remove the containers.
        """
        if not contents:
            return {}
        new = await to_thread.run_sync(_new_objects, contents)
        async with self.database.connection() as connection:
            known_cids = await objects_sql.hold_objects(connection, new)
        stored: dict[str, str] = {}
        errors: list[Retryable] = []
        remaining = zip(new, contents, strict=True)

        async def store_next_containers() -> None:
            for new_object, (_, content, _) in remaining:
                try:
                    stored[new_object.key] = await self._store_container(new_object.key, content, known_cids)
                except Retryable as error:
                    errors.append(error)

        try:
            async with anyio.create_task_group() as tasks:
                for _ in range(min(MAX_CONCURRENT_PUTS, len(contents))):
                    tasks.start_soon(store_next_containers)
        finally:
            if stored:  # the next attempt skips stored containers
                with anyio.move_on_after(10, shield=True):
                    async with self.database.connection() as connection:
                        await objects_sql.set_cids(connection, stored)
        if errors:
            raise errors[0]
        return {job_id: stored[container_key(job_id)] for job_id, _, _ in contents}

    async def _store_container(self, key: str, content: bytes, known_cids: dict[str, str | None]) -> str:
        if key not in known_cids:
            raise Retryable(
                "pinner_unavailable",
                "an earlier container of this job is being removed from the store; try again",
                "store_unavailable",
                2,
            )
        cid = known_cids[key]
        if cid is not None and await self.pins.holds(key):
            return cid
        return (await self.pins.put(key, content)).cid


def _new_objects(contents: Sequence[tuple[bytes, bytes, bytes]]) -> list[NewObject]:
    return [
        NewObject(container_key(job_id), job_id, len(content), hashlib.sha256(content).digest(), owner)
        for job_id, content, owner in contents
    ]
