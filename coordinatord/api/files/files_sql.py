"""Rows of uploaded files and of what batches yielded."""

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
Named = tuple[bytes, str]  # an upload's owner and content id

UNATTACHED: Final = timedelta(seconds=300)  # what an upload lives until a job or a batch refers to it
UPLOADING: Final = timedelta(hours=1)  # beyond the time of one part; a row without a cid after that was left by a crash
HOLD: Final = timedelta(minutes=15)  # far beyond the wait for a receipt
REMOVAL_LEASE: Final = timedelta(seconds=120)
_COLUMNS: Final = "id, owner, purpose, filename, cid, commitment, bytes, lines, attached, created_at, expires_at"
_LIVE: Final = "(expires_at > clock_timestamp() and removing_until is null)"
_NAMED: Final = (
    "exists (select 1 from jobs j where j.job_id = f.held_for and (j.task_cid = f.cid or j.result_cid = f.cid))"
)


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


@attrs.frozen(slots=True)
class Doomed:
    """A file whose removal was leased; `upload_id` is the store's upload that nobody ended, if there is one."""

    id: str
    upload_id: str | None


def new_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def object_key(file_id: str) -> str:
    return f"files/{file_id}"


@attrs.frozen(slots=True)
class Begun:
    """An upload's row; `upload_id` is the store's upload that an earlier attempt left, to be aborted."""

    upload_id: str | None


async def begin(
    connection: Connection, file_id: str, owner: bytes, purpose: Purpose, filename: str, *, reserved: int = 0
) -> Begun | None:
    """Before an upload: the row that makes the object known, and counts as `reserved` bytes until it is complete. The
    same id may begin again, and then replaces what it holds when it completes. None while the file is being removed."""
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
        UPLOADING,
        reserved,
    )
    return None if row is None else Begun(row["upload_id"])


async def note_part(connection: Connection, file_id: str, upload_id: str) -> bool:
    """Another part of it goes to the store, within the store's own upload. False when the row is gone: nobody would
    know of what comes."""
    known = await connection.fetchval(
        "update files set upload_id = $2, expires_at = greatest(expires_at, clock_timestamp() + $3)"
        " where id = $1 and removing_until is null returning true",
        file_id,
        upload_id,
        UPLOADING,
    )
    return known is True


async def complete(
    connection: Connection,
    file_id: str,
    *,
    cid: str,
    size: int,
    lines: int,
    commitment: bytes | None,
    retention_seconds: int | None = None,
) -> FileRow | None:
    """The store holds all of it: from now on the file can be found. With `retention_seconds` it is attached from the
    start. None when the row is gone."""
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
        UNATTACHED if retention_seconds is None else timedelta(seconds=retention_seconds),
    )
    return None if row is None else _file_row(row)


async def find(connection: Connection, file_id: str, owner: bytes) -> FileRow | None:
    """A live file of this owner."""
    row = await connection.fetchrow(
        f"select {_COLUMNS} from files where id = $1 and owner = $2 and cid is not null and {_LIVE}",
        file_id,
        owner,
    )
    return None if row is None else _file_row(row)


async def find_by_cid(connection: Connection, owner: bytes, cid: str, purpose: Purpose) -> FileRow | None:
    """The live upload of this owner that a body names by its content id; of several the one that lives longest."""
    row = await connection.fetchrow(
        f"select {_COLUMNS} from files where owner = $1 and cid = $2 and purpose = $3 and {_LIVE}"
        " order by expires_at desc limit 1",
        owner,
        cid,
        purpose,
    )
    return None if row is None else _file_row(row)


async def hold(connection: Connection, file_id: str, job_id: bytes) -> bool:
    """An op of `job_id` that names it is about to go to the chain: keep it until that is decided. False when it is
    gone."""
    held = await connection.fetchval(
        "update files set held_for = $2, held_until = clock_timestamp() + $3"
        f" where id = $1 and cid is not null and {_LIVE} returning true",
        file_id,
        job_id,
        HOLD,
    )
    return held is True


async def attach(connection: Connection, file_id: str, retention_seconds: int, job_id: bytes | None = None) -> bool:
    """A job or a batch refers to it: keep it for the retention period. False when it is gone or about to go. `job_id`,
    unless it is held for that job already."""
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


async def shorten(connection: Connection, file_id: str, seconds: int) -> None:
    """Keep a file no longer than so many seconds from now. For a file whose `expires_at` its owner has not read yet."""
    await connection.execute(
        "update files set expires_at = least(expires_at, clock_timestamp() + $2 * interval '1 second') where id = $1",
        file_id,
        seconds,
    )


async def attach_named(connection: Connection, retention_seconds: int, *, within_seconds: float) -> None:
    """Attach files that expire within so many seconds and that a job names: their op took effect, and its caller did
    not wait."""
    await connection.execute(
        "update files f set attached = true, expires_at = f.created_at + $1 * interval '1 second'"
        " where not attached and expires_at < statement_timestamp() + $2 * interval '1 second'"
        f" and removing_until is null and held_for is not null and {_NAMED}",
        retention_seconds,
        within_seconds,
    )


async def lease_expired(connection: Connection, limit: int) -> list[Doomed]:
    """Files past their deadline that the caller is to remove from the store."""
    rows = await connection.fetch(
        "update files set removing_until = clock_timestamp() + $2 where id in (select id from files"
        " where expires_at < statement_timestamp() and (held_until is null or held_until < clock_timestamp())"
        " and (removing_until is null or removing_until < clock_timestamp())"
        " order by expires_at limit $1 for update skip locked) returning id, upload_id",
        limit,
        REMOVAL_LEASE,
    )
    return [Doomed(row["id"], row["upload_id"]) for row in rows]


async def give_up(connection: Connection, file_id: str) -> Doomed | None:
    """An upload that did not come whole: lease its removal now. None when somebody else removes it, or when it holds
    an earlier content that stays."""
    row = await connection.fetchrow(
        "update files set removing_until = clock_timestamp() + $2, expires_at = clock_timestamp()"
        " where id = $1 and cid is null and removing_until is null returning id, upload_id",
        file_id,
        REMOVAL_LEASE,
    )
    return None if row is None else Doomed(row["id"], row["upload_id"])


async def forget(connection: Connection, file_id: str) -> None:
    """The store holds it no more. A row that an upload took over meanwhile stays."""
    await connection.execute("delete from files where id = $1 and removing_until is not null", file_id)


def _file_row(row: asyncpg.Record) -> FileRow:
    return FileRow(*row)


async def find_inputs(connection: Connection, named: Sequence[Named]) -> dict[Named, FileRow]:
    """The live input uploads among those that lines of a batch name."""
    found: dict[Named, FileRow] = {}
    for owner, cid in named:
        row = await find_by_cid(connection, owner, cid, "input")
        if row is not None:
            found[owner, cid] = row
    return found


async def attach_inputs(connection: Connection, uploads: Mapping[Named, FileRow], retention_seconds: int) -> set[Named]:
    """Keep them for the retention period, within the transaction that records their lines: an upload lives a few
    minutes, a batch may take longer. Which of them were still there."""
    return {
        (owner, cid)
        for (owner, cid), row in uploads.items()
        if await attach(connection, row.id, retention_seconds, derive_job_id(owner, row.commitment or b""))
    }
