"""Queries on the escrow keys (generations) that this deployment has announced, lost or erased."""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection

# A lost key matters while orders sealed to it can be claimed (a day) and settled (another day), plus a margin of an
# hour.
_IS_RECENT_LOSS: Final = "lost_at > clock_timestamp() - interval '49 hours'"


@attrs.frozen(slots=True)
class GenerationRow:
    public_key: bytes
    # Unix milliseconds.
    announced_from: int


async def record_keys(connection: Connection, held_keys: Sequence[GenerationRow]) -> None:
    """Record the keys that an instance holds. A key that any instance holds is not lost."""
    await connection.executemany(
        "insert into escrow_generations (public_key, announced_from) values ($1, $2)"
        " on conflict (public_key) do update set lost_at = null, erased_at = null",
        [(row.public_key, row.announced_from) for row in held_keys],
    )


async def mark_lost(connection: Connection, held_keys: Sequence[bytes], now_ms: int) -> list[bytes]:
    """Mark the announced keys that are not among `held_keys` as lost, and return these keys. Delete the records of keys
    that are neither held nor announced yet."""
    await connection.execute(
        "delete from escrow_generations where announced_from > $1 and public_key <> all($2)", now_ms, held_keys
    )
    rows = await connection.fetch(
        "update escrow_generations set lost_at = clock_timestamp()"
        " where lost_at is null and erased_at is null and public_key <> all($1) returning public_key",
        held_keys,
    )
    return [row["public_key"] for row in rows]


async def mark_announced(connection: Connection, public_key: bytes, block: int) -> None:
    """Record the head block at the first announcement of a key. Keep an earlier record."""
    await connection.execute(
        "update escrow_generations set announced_block = $2 where public_key = $1 and announced_block is null",
        public_key,
        block,
    )


async def mark_erased(connection: Connection, public_key: bytes, *, too_early: bool) -> None:
    """Mark a key as erased. `too_early` marks it as lost, because orders sealed to it may still be claimed."""
    column = "lost_at" if too_early else "erased_at"
    await connection.execute(
        f"update escrow_generations set {column} = clock_timestamp() where public_key = $1", public_key
    )


async def delete_old_records(connection: Connection) -> None:
    """Delete records of keys that were erased or lost more than 49 hours ago."""
    await connection.execute(
        "delete from escrow_generations where erased_at < clock_timestamp() - interval '49 hours'"
        f" or not coalesce({_IS_RECENT_LOSS}, true)"
    )


async def has_lost_keys(connection: Connection) -> bool:
    """Return True while orders may be sealed to a lost key."""
    lost: bool = await connection.fetchval("select began >= 0 from escrow_custody")
    return lost
