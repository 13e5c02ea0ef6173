"""Uploaded containers that lines of a batch name by content id: looked up and kept many at a time."""

from collections.abc import Mapping, Sequence

from common.quotes import job_id
from coordinatord.store import files
from coordinatord.store.database import Connection
from coordinatord.store.files import FileRow

Named = tuple[bytes, str]  # owner, content id


async def find(connection: Connection, named: Sequence[Named]) -> dict[Named, FileRow]:
    """The live input uploads among these."""
    found: dict[Named, FileRow] = {}
    for owner, cid in named:
        row = await files.find_by_cid(connection, owner, cid, "input")
        if row is not None:
            found[owner, cid] = row
    return found


async def attach(connection: Connection, uploads: Mapping[Named, FileRow], retention_seconds: int) -> set[Named]:
    """Keep them for the retention period, within the transaction that records their lines: an upload lives a few
    minutes, a batch may take longer. Which of them were still there."""
    return {
        (owner, cid)
        for (owner, cid), row in uploads.items()
        if await files.attach(connection, row.id, retention_seconds, job_id(owner, row.commitment or b""))
    }
