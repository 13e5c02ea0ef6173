"""Uploads that submissions and settles may refer to by content id."""

from typing import Protocol

import attrs

from coordinatord.store import files
from coordinatord.store.database import Database
from coordinatord.store.files import FileRow


@attrs.frozen(slots=True)
class Upload:
    """A stored upload; `commitment` is a container's `c`, computed while it came in."""

    file_id: str
    cid: str
    commitment: bytes | None


class Uploads(Protocol):
    """Finds an upload that is still live, by its owner and content id."""

    async def find_input(self, owner: bytes, cid: str) -> Upload | None: ...
    async def find_result(self, owner: bytes, cid: str) -> Upload | None: ...

    async def hold(self, upload: Upload, job_id: bytes) -> bool:
        """Before an op that names it goes to the chain: it is not removed while that is undecided. False when it is
        gone meanwhile."""
        ...

    async def attach(self, upload: Upload) -> None:
        """The op took effect: it is kept for the retention period."""
        ...


@attrs.frozen(slots=True)
class StoredUploads:
    database: Database
    retention_seconds: int

    async def find_input(self, owner: bytes, cid: str) -> Upload | None:
        async with self.database.connection() as connection:
            return _upload(await files.find_by_cid(connection, owner, cid, "input"))

    async def find_result(self, owner: bytes, cid: str) -> Upload | None:
        async with self.database.connection() as connection:
            return _upload(await files.find_by_cid(connection, owner, cid, "result"))

    async def hold(self, upload: Upload, job_id: bytes) -> bool:
        async with self.database.connection() as connection:
            return await files.hold(connection, upload.file_id, job_id)

    async def attach(self, upload: Upload) -> None:
        async with self.database.connection() as connection:
            await files.attach(connection, upload.file_id, self.retention_seconds)


def _upload(row: FileRow | None) -> Upload | None:
    return None if row is None else Upload(row.id, row.cid, row.commitment)
