"""The escrow's generations as this deployment remembers them, and since when its keys open what is posted."""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection

# A loss matters as long as what was sealed to the key can be claimed (a day) and settled (another), and an hour more.
_RECENT_LOSS: Final = "lost_at > clock_timestamp() - interval '49 hours'"


@attrs.frozen(slots=True)
class GenerationRow:
    public_key: bytes
    announced_from: int  # Unix milliseconds


async def record(connection: Connection, held: Sequence[GenerationRow]) -> None:
    """That an instance holds these: what one of them holds is not lost, whatever another found."""
    await connection.executemany(
        "insert into escrow_generations (public_key, announced_from) values ($1, $2)"
        " on conflict (public_key) do update set lost_at = null, erased_at = null",
        [(row.public_key, row.announced_from) for row in held],
    )


async def mark_lost(connection: Connection, held: Sequence[bytes], now_ms: int) -> list[bytes]:
    """Mark as lost the keys that were announced before and are not among `held`; those that are newly lost."""
    await connection.execute(
        "delete from escrow_generations where announced_from > $1 and public_key <> all($2)", now_ms, held
    )
    rows = await connection.fetch(
        "update escrow_generations set lost_at = clock_timestamp()"
        " where lost_at is null and erased_at is null and public_key <> all($1) returning public_key",
        held,
    )
    return [row["public_key"] for row in rows]


async def mark_announced(connection: Connection, public_key: bytes, block: int) -> None:
    """The first one who sees it announced says at which head."""
    await connection.execute(
        "update escrow_generations set announced_block = $2 where public_key = $1 and announced_block is null",
        public_key,
        block,
    )


async def mark_erased(connection: Connection, public_key: bytes, *, too_early: bool) -> None:
    """`too_early`: what is sealed to it may still be claimed, so that erasing it is a loss."""
    column = "lost_at" if too_early else "erased_at"
    await connection.execute(
        f"update escrow_generations set {column} = clock_timestamp() where public_key = $1", public_key
    )


async def drop_forgotten(connection: Connection) -> None:
    """Those whose end no longer matters."""
    await connection.execute(
        "delete from escrow_generations where erased_at < clock_timestamp() - interval '49 hours'"
        f" or not coalesce({_RECENT_LOSS}, true)"
    )


async def has_lost_keys(connection: Connection) -> bool:
    """Return True while something may still be sealed to a key that was lost."""
    lost: bool = await connection.fetchval("select began >= 0 from escrow_custody")
    return lost
