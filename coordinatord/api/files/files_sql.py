"""Queries on the rows of uploaded files and batch output."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import asyncpg
import attrs

from common.api import files
from common.quotes import derive_job_id
from coordinatord.storage.database.connections import Connection

Purpose = files.Purpose
# Owner and content id of an upload. Batch lines refer to uploads by this pair.
UploadName = tuple[bytes, str]

# Life of an upload that no job or batch refers to.
UNATTACHED_LIFETIME: Final = timedelta(seconds=300)
# Longer than the upload of one part takes. After this time, a row without a content id is a leftover of a crash.
UPLOAD_TIMEOUT: Final = timedelta(hours=1)
# Time for which an undecided op keeps a file. Far longer than the wait for a receipt.
HOLD_TIME: Final = timedelta(minutes=15)
REMOVAL_LEASE: Final = timedelta(seconds=120)
_COLUMNS: Final = "id, owner, purpose, filename, cid, commitment, bytes, lines, attached, created_at, expires_at"
_IS_LIVE: Final = "(expires_at > clock_timestamp() and removing_until is null)"
_NAMED_BY_JOB: Final = (
    "exists (select 1 from jobs j where j.job_id = f.held_for and (j.task_cid = f.cid or j.result_cid = f.cid))"
)


@attrs.frozen(slots=True)
class FileRow:
    """File that is stored completely."""

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


@attrs.frozen(slots=True)
class FileRemoval:
    """File that this process has leased for removal. `upload_id` is the store's unfinished upload, if any."""

    id: str
    upload_id: str | None


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def object_key(file_id: str) -> str:
    return f"files/{file_id}"


@attrs.frozen(slots=True)
class StartedUpload:
    """Started upload. `upload_id` is the store's upload of an earlier attempt, which the caller must abort, or None."""

    upload_id: str | None


async def begin_upload(
    connection: Connection, file_id: str, owner: bytes, purpose: Purpose, filename: str, *, reserved: int = 0
) -> StartedUpload | None:
    """Insert the row of an upload. The row counts as `reserved` bytes until the upload is complete.

    If the id exists, start its upload again; the old content is replaced on completion. Return None while the file is
    being removed.
    """
    row = await connection.fetchrow(
        "insert into files as f (id, owner, purpose, filename, expires_at, bytes)"
        " values ($1, $2, $3, $4, clock_timestamp() + $5, $6)"
        " on conflict (id) do update set filename = excluded.filename, removing_until = null,"
        " expires_at = greatest(f.expires_at, excluded.expires_at)"
        " where f.owner = excluded.owner and f.purpose = excluded.purpose"
        " and (f.removing_until is null or f.removing_until < clock_timestamp()) returning upload_id",
        file_id,
        owner,
        purpose,
        filename,
        UPLOAD_TIMEOUT,
        reserved,
    )
    return None if row is None else StartedUpload(row["upload_id"])


async def record_part(connection: Connection, file_id: str, upload_id: str) -> bool:
    """Record the store's upload id before each part, and extend the row's life. Return False when the row is gone."""
    known = await connection.fetchval(
        "update files set upload_id = $2, expires_at = greatest(expires_at, clock_timestamp() + $3)"
        " where id = $1 and removing_until is null returning true",
        file_id,
        upload_id,
        UPLOAD_TIMEOUT,
    )
    return known is True


async def complete_upload(
    connection: Connection,
    file_id: str,
    *,
    cid: str,
    size: int,
    lines: int,
    commitment: bytes | None,
    retention_seconds: int | None = None,
) -> FileRow | None:
    """Record that the upload is complete, so that clients can find the file. Return None when the row is gone.

    With `retention_seconds`, mark the file as attached and keep it for so long.
    """
    row = await connection.fetchrow(
        "update files set cid = $2, bytes = $3, lines = $4, commitment = $5, upload_id = null, attached = $6,"
        " created_at = now.now, expires_at = now.now + $7 from (select clock_timestamp() as now) as now"
        f" where id = $1 and removing_until is null returning {_COLUMNS}",
        file_id,
        cid,
        size,
        lines,
        commitment,
        retention_seconds is not None,
        UNATTACHED_LIFETIME if retention_seconds is None else timedelta(seconds=retention_seconds),
    )
    return None if row is None else _file_row(row)


async def find_file(connection: Connection, file_id: str, owner: bytes) -> FileRow | None:
    """Return a live file of this owner, or None."""
    row = await connection.fetchrow(
        f"select {_COLUMNS} from files where id = $1 and owner = $2 and cid is not null and {_IS_LIVE}",
        file_id,
        owner,
    )
    return None if row is None else _file_row(row)


async def find_by_cid(connection: Connection, owner: bytes, cid: str, purpose: Purpose) -> FileRow | None:
    """Return the owner's live upload with this content id. If there are several, return the last to expire."""
    row = await connection.fetchrow(
        f"select {_COLUMNS} from files where owner = $1 and cid = $2 and purpose = $3 and {_IS_LIVE}"
        " order by expires_at desc limit 1",
        owner,
        cid,
        purpose,
    )
    return None if row is None else _file_row(row)


async def hold_file(connection: Connection, file_id: str, job_id: bytes) -> bool:
    """Keep a file for up to HOLD_TIME, while an op of `job_id` that names the file is undecided. Return False when the
    file is gone."""
    held = await connection.fetchval(
        "update files set held_for = $2, held_until = clock_timestamp() + $3"
        f" where id = $1 and cid is not null and {_IS_LIVE} returning true",
        file_id,
        job_id,
        HOLD_TIME,
    )
    return held is True


async def attach_file(
    connection: Connection, file_id: str, retention_seconds: int, job_id: bytes | None = None
) -> bool:
    """Keep a file for the retention period, because a job or batch refers to it.

    Pass `job_id` unless the file is already held for that job. Return False when the file is gone or about to be
    removed.
    """
    found = await connection.fetchval(
        "update files set attached = true, held_until = null, held_for = coalesce($3, held_for),"
        " expires_at = greatest(expires_at, created_at + $2 * interval '1 second')"
        " where id = $1 and cid is not null and removing_until is null"
        " and (attached or expires_at > clock_timestamp() or held_until > clock_timestamp()) returning true",
        file_id,
        retention_seconds,
        job_id,
    )
    return found is True


async def shorten_lifetime(connection: Connection, file_id: str, seconds: int) -> None:
    """Let a file expire within `seconds` from now. Call this before the owner can read the file's `expires_at`."""
    await connection.execute(
        "update files set expires_at = least(expires_at, clock_timestamp() + $2 * interval '1 second') where id = $1",
        file_id,
        seconds,
    )


async def attach_files_of_jobs(connection: Connection, retention_seconds: int, *, within_seconds: float) -> None:
    """Attach files that expire within `within_seconds` although a job names them. The op that named such a file took
    effect after its client had disconnected, so no request attached the file."""
    await connection.execute(
        "update files f set attached = true, expires_at = f.created_at + $1 * interval '1 second'"
        " where not attached and expires_at < statement_timestamp() + $2 * interval '1 second'"
        f" and removing_until is null and held_for is not null and {_NAMED_BY_JOB}",
        retention_seconds,
        within_seconds,
    )


async def lease_expired_files(connection: Connection, limit: int) -> list[FileRemoval]:
    """Lease expired files to the caller for removal. No other process removes a leased file."""
    rows = await connection.fetch(
        "update files set removing_until = clock_timestamp() + $2 where id in (select id from files"
        " where expires_at < statement_timestamp() and (held_until is null or held_until < clock_timestamp())"
        " and (removing_until is null or removing_until < clock_timestamp())"
        " order by expires_at limit $1 for update skip locked) returning id, upload_id",
        limit,
        REMOVAL_LEASE,
    )
    return [FileRemoval(row["id"], row["upload_id"]) for row in rows]


async def lease_unfinished_upload(connection: Connection, file_id: str) -> FileRemoval | None:
    """Lease an incomplete upload for removal. Return None if the upload is being removed already, or if its row has the
    content of an earlier upload."""
    row = await connection.fetchrow(
        "update files set removing_until = clock_timestamp() + $2, expires_at = clock_timestamp()"
        " where id = $1 and cid is null and removing_until is null returning id, upload_id",
        file_id,
        REMOVAL_LEASE,
    )
    return None if row is None else FileRemoval(row["id"], row["upload_id"])


async def delete_row(connection: Connection, file_id: str) -> None:
    """Delete the row of a removed file, unless a new upload has taken over the row."""
    await connection.execute("delete from files where id = $1 and removing_until is not null", file_id)


def _file_row(row: asyncpg.Record) -> FileRow:
    return FileRow(*row)


async def find_inputs(connection: Connection, names: Sequence[UploadName]) -> dict[UploadName, FileRow]:
    """Return the live input uploads with these names."""
    found: dict[UploadName, FileRow] = {}
    for owner, cid in names:
        row = await find_by_cid(connection, owner, cid, "input")
        if row is not None:
            found[owner, cid] = row
    return found


async def attach_inputs(
    connection: Connection, uploads: Mapping[UploadName, FileRow], retention_seconds: int
) -> set[UploadName]:
    """Keep uploads for the retention period, because a batch may run longer than an unattached upload lives. Call this
    in the transaction that records the batch's lines. Return the names of the uploads that still exist."""
    return {
        (owner, cid)
        for (owner, cid), row in uploads.items()
        if await attach_file(connection, row.id, retention_seconds, derive_job_id(owner, row.commitment or b""))
    }
