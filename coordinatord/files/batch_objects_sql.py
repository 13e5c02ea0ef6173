"""Uploaded containers that lines of a batch name by content id: looked up and kept many at a time."""

from collections.abc import Mapping, Sequence

import attrs

from common.quotes import job_id
from coordinatord.database.connections import Connection
from coordinatord.files import sql
from coordinatord.files.objects_sql import HOLD
from coordinatord.files.sql import FileRow

Named = tuple[bytes, str]  # owner, content id


async def find(connection: Connection, named: Sequence[Named]) -> dict[Named, FileRow]:
    """The live input uploads among these."""
    found: dict[Named, FileRow] = {}
    for owner, cid in named:
        row = await sql.find_by_cid(connection, owner, cid, "input")
        if row is not None:
            found[owner, cid] = row
    return found


async def attach(connection: Connection, uploads: Mapping[Named, FileRow], retention_seconds: int) -> set[Named]:
    """Keep them for the retention period, within the transaction that records their lines: an upload lives a few
    minutes, a batch may take longer. Which of them were still there."""
    return {
        (owner, cid)
        for (owner, cid), row in uploads.items()
        if await sql.attach(connection, row.id, retention_seconds, job_id(owner, row.commitment or b""))
    }


# Rows of containers that lines of a batch brought along, many at a time; what they mean is in `objects`.


@attrs.frozen(slots=True)
class NewObject:
    key: str
    subject: bytes
    size: int
    sha256: bytes
    owner: bytes


async def hold(connection: Connection, new: Sequence[NewObject]) -> dict[str, str | None]:
    """Before the uploads: key → the content id that the store holds already, if any. A key that is missing in the
    answer is being removed just now."""
    rows = await connection.fetch(
        "insert into objects as o (key, subject, bytes, sha256, expires_at, owner)"
        " select n.key, n.subject, n.bytes, n.sha256, clock_timestamp() + $5, n.owner"
        " from unnest($1::text[], $2::bytea[], $3::bigint[], $4::bytea[], $6::bytea[])"
        " as n(key, subject, bytes, sha256, owner)"
        " on conflict (key) do update set removing_until = null,"
        " holders = case when o.removing_until is null then o.holders + 1 else 1 end,"
        " expires_at = greatest(o.expires_at, excluded.expires_at),"
        " cid = case when o.sha256 = excluded.sha256 and o.removing_until is null then o.cid end,"
        " bytes = excluded.bytes, sha256 = excluded.sha256"
        " where o.removing_until is null or o.removing_until < clock_timestamp()"
        " returning key, cid",
        [one.key for one in new],
        [one.subject for one in new],
        [one.size for one in new],
        [one.sha256 for one in new],
        HOLD,
        [one.owner for one in new],
    )
    return {row["key"]: row["cid"] for row in rows}


async def set_cids(connection: Connection, cids: Mapping[str, str]) -> None:
    await connection.execute(
        "update objects set cid = n.cid from unnest($1::text[], $2::text[]) as n(key, cid) where objects.key = n.key",
        list(cids),
        list(cids.values()),
    )


async def release(connection: Connection, keys: Sequence[str]) -> None:
    """Their posts are in the outbox, which keeps them from now on."""
    await connection.execute("update objects set holders = holders - 1 where key = any($1::text[])", keys)
