"""Sums of what is stored for each owner, which triggers keep as rows of files, objects and batches change."""

from typing import Final

import attrs

from coordinatord.store.database import Connection

KINDS: Final = ("containers", "results", "inputs", "batch_files", "batches")


@attrs.frozen(slots=True)
class StoredFor:
    """`earned`: the owner has a settled job, or is a listed provider."""

    bytes: int
    rows: int
    earned: bool


async def stored_for(connection: Connection, owner: bytes) -> StoredFor:
    """In a transaction that has just added to them: others that add to the same owner's wait for its end."""
    row = await connection.fetchrow(
        "select coalesce(sum(bytes), 0)::bigint, coalesce(sum(rows), 0)::bigint, has_earned($1) from stored"
        " where owner = $1",
        owner,
    )
    return StoredFor(*row)


async def bytes_by_kind(connection: Connection) -> dict[str, int]:
    """Of every kind, also of those that nothing is kept of."""
    rows = await connection.fetch("select kind, sum(bytes)::bigint as bytes from stored group by kind")
    return dict.fromkeys(KINDS, 0) | {row["kind"]: row["bytes"] for row in rows}


async def drop_empty(connection: Connection) -> None:
    await connection.execute("delete from stored where bytes = 0 and rows = 0")
