"""Providers as the index holds them, with the capacity that their reputation leaves them."""

from collections.abc import Sequence
from typing import Final

import asyncpg
import attrs

from coordinatord.store.database import Database
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class ProviderRow:
    provider_id: int
    operator: bytes
    box_key: bytes | None
    evidence: bytes | None
    listed: bool
    reputation: int
    allow_all_models: bool
    allowed_models: list[int]
    capacity: int
    active_jobs: int


CAPACITY: Final = "greatest(1, v.reputation * least(v.requested, v.ceiling) / 1000)"
_PROVIDER: Final = (
    "v.provider_id, v.operator, v.box_key, v.evidence, v.listed, v.reputation, v.allow_all_models,"
    " array(select a.model_id from provider_models a where a.provider_id = v.provider_id order by a.model_id)"
    f" as allowed_models, {CAPACITY} as capacity, v.active_jobs"
)


async def read_providers(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[ProviderRow]]:
    """The registry numbers providers from 1 without gaps: after as many as `offset` comes the next number."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select v.*, {COLUMNS} from index_position p left join lateral (select {_PROVIDER} from providers v"
            " where v.provider_id > $2 order by v.provider_id limit $1) v on true order by v.provider_id",
            limit,
            offset,
        )
    return snapshot_of(rows), [_provider(row) for row in rows if row["provider_id"] is not None]


_BY_IDS: Final = f"select {_PROVIDER}, {COLUMNS} from index_position p left join providers v on v.provider_id = any($1)"


async def read_by_ids(line: Line, provider_ids: Sequence[int]) -> tuple[Snapshot, dict[int, ProviderRow]]:
    rows = await line.fetch(_BY_IDS, provider_ids)
    return snapshot_of(rows), {row["provider_id"]: _provider(row) for row in rows if row["provider_id"] is not None}


def _provider(row: asyncpg.Record) -> ProviderRow:
    return ProviderRow(*row[:10])
