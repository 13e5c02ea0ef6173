"""The escrow allowlist of the provider registry."""

import attrs

from coordinatord.store.database import Database
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class AllowlistRow:
    key: bytes
    status: int
    entry: str


async def read_allowlist(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[AllowlistRow]]:
    async with database.connection() as connection:
        rows = await connection.fetch(
            f"select e.*, {COLUMNS} from index_position p left join lateral (select key, status, entry from allowlist"
            " order by key limit $1 offset $2) e on true order by e.key",
            limit,
            offset,
        )
    return snapshot_of(rows), [AllowlistRow(*row[:3]) for row in rows if row["key"] is not None]
