"""Asks of listed providers, and the floors under them."""

import asyncpg
import attrs

from coordinatord.store.database import Database
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class AskRow:
    provider_id: int
    model_id: int
    sla: int
    rate_in: str
    rate_out: str


@attrs.frozen(slots=True)
class FloorRow:
    """The lowest of each rate on its own: one row may combine two providers' rates."""

    model_id: int
    sla: int
    rate_in: str
    rate_out: str


async def read_asks(database: Database, model_id: int | None, limit: int, offset: int) -> tuple[Snapshot, list[AskRow]]:
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select page.*, {COLUMNS} from index_position p left join lateral (select a.provider_id, a.model_id,"
            " a.sla, a.rate_in::text, a.rate_out::text from asks a join providers v using (provider_id)"
            " where v.listed and ($1::bigint is null or a.model_id = $1)"
            " order by a.provider_id, a.model_id, a.sla limit $2 offset $3) page on true"
            " order by page.provider_id, page.model_id, page.sla",
            model_id,
            limit,
            offset,
        )
    return snapshot_of(rows), [AskRow(*row[:5]) for row in rows if row["provider_id"] is not None]


async def read_floors(
    database: Database, model_id: int | None, sla: int | None, limit: int, offset: int
) -> tuple[Snapshot, list[FloorRow]]:
    async with database.connection_for_lists() as connection:
        rows: list[asyncpg.Record] = await connection.fetch(
            f"select page.*, {COLUMNS} from index_position p left join lateral (select a.model_id, a.sla,"
            " min(a.rate_in)::text as rate_in, min(a.rate_out)::text as rate_out"
            " from asks a join providers v using (provider_id) join models m using (model_id)"
            " where v.listed and ($1::bigint is null or a.model_id = $1) and ($2::bigint is null or a.sla = $2)"
            " group by a.model_id, a.sla order by a.model_id, a.sla limit $3 offset $4) page on true"
            " order by page.model_id, page.sla",
            model_id,
            sla,
            limit,
            offset,
        )
    return snapshot_of(rows), [FloorRow(*row[:4]) for row in rows if row["model_id"] is not None]
