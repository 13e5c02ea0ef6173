"""Rows of uploaded files and of what batches yielded."""

import secrets
from datetime import datetime, timedelta
from typing import Final, Literal

import asyncpg
import attrs

from coordinatord.store.database import Connection

Purpose = Literal["input", "result", "batch", "batch_output"]

UNATTACHED: Final = timedelta(seconds=300)  # what an upload lives until a job or a batch refers to it
UPLOADING: Final = timedelta(hours=1)  # beyond the longest upload; a row without a cid after that was left by a crash
_REMOVAL_LEASE: Final = timedelta(seconds=120)
_COLUMNS: Final = "id, owner, purpose, filename, cid, commitment, bytes, lines, attached, created_at, expires_at"


@attrs.frozen(slots=True)
class FileRow:
    """A file that the store holds in whole."""

    id: str
    owner: bytes
    purpose: Purpose
    filename: str
    cid: str
    commitment: bytes | None
    bytes: int
    lines: int
    attached: bool
    created_at: datetime
    expires_at: datetime


def object_key(file_id: str) -> str:
    return f"files/{file_id}"


async def begin(connection: Connection, owner: bytes, purpose: Purpose, filename: str) -> str:
    """The id of a file whose upload may begin now."""
    file_id = f"file-{secrets.token_hex(12)}"
    await connection.execute(
        "insert into files (id, owner, purpose, filename, expires_at) values ($1, $2, $3, $4, clock_timestamp() + $5)",
        file_id,
        owner,
        purpose,
        filename,
        UPLOADING,
    )
    return file_id


async def complete(
    connection: Connection, file_id: str, *, cid: str, size: int, lines: int, commitment: bytes | None
) -> FileRow:
    """The store holds all of it: from now on the file can be found."""
    row = await connection.fetchrow(
        "update files set cid = $2, bytes = $3, lines = $4, commitment = $5, created_at = now.now,"
        f" expires_at = now.now + $6 from (select clock_timestamp() as now) as now where id = $1 returning {_COLUMNS}",
        file_id,
        cid,
        size,
        lines,
        commitment,
        UNATTACHED,
    )
    return _file_row(row)


async def find(connection: Connection, file_id: str, owner: bytes) -> FileRow | None:
    """A live file of this owner."""
    row = await connection.fetchrow(
        f"select {_COLUMNS} from files where id = $1 and owner = $2 and cid is not null"
        " and expires_at > clock_timestamp()",
        file_id,
        owner,
    )
    return None if row is None else _file_row(row)


async def find_by_cid(connection: Connection, owner: bytes, cid: str, purpose: Purpose) -> FileRow | None:
    """The live upload of this owner that a body names by its content id; of several the one that lives longest."""
    row = await connection.fetchrow(
        f"select {_COLUMNS} from files where owner = $1 and cid = $2 and purpose = $3"
        " and expires_at > clock_timestamp() order by expires_at desc limit 1",
        owner,
        cid,
        purpose,
    )
    return None if row is None else _file_row(row)


async def attach(connection: Connection, file_id: str, retention_seconds: int) -> bool:
    """A job or a batch refers to it: keep it for the retention period. False when it is gone or about to go."""
    found = await connection.fetchval(
        "update files set attached = true, expires_at = greatest(expires_at, created_at + $2 * interval '1 second')"
        " where id = $1 and cid is not null and (attached or expires_at > clock_timestamp())"
        " and removing_until is null returning true",
        file_id,
        retention_seconds,
    )
    return found is True


async def lease_expired(connection: Connection, limit: int) -> list[str]:
    """Ids of files past their deadline that the caller is to remove from the store."""
    rows = await connection.fetch(
        "update files set removing_until = clock_timestamp() + $2 where id in (select id from files"
        " where expires_at < clock_timestamp() and (removing_until is null or removing_until < clock_timestamp())"
        " order by expires_at limit $1 for update skip locked) returning id",
        limit,
        _REMOVAL_LEASE,
    )
    return [row["id"] for row in rows]


async def forget(connection: Connection, file_id: str) -> None:
    """The store holds it no more."""
    await connection.execute("delete from files where id = $1", file_id)


def _file_row(row: asyncpg.Record) -> FileRow:
    return FileRow(*row)
