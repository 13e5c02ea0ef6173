"""The models of the catalogue."""

from collections.abc import Sequence
from typing import Final

import asyncpg
import attrs

from coordinatord.store.database import Database
from coordinatord.store.lines import Line
from coordinatord.store.snapshot import COLUMNS, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class ModelRow:
    model_id: int
    name: str
    enabled: bool
    owned_by: str
    params_schema: str


_MODEL: Final = "m.model_id, m.name, m.enabled, m.owned_by, m.params_schema"


async def read_models(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[ModelRow]]:
    async with database.connection() as connection:
        rows = await connection.fetch(
            f"select m.*, {COLUMNS} from index_position p left join lateral"
            f" (select {_MODEL} from models m order by m.model_id limit $1 offset $2) m on true order by m.model_id",
            limit,
            offset,
        )
    return snapshot_of(rows), [_model(row) for row in rows if row["model_id"] is not None]


_BY_NAMES: Final = (
    f"select distinct on (m.name) {_MODEL}, {COLUMNS} from index_position p"
    " left join models m on m.name = any($1) order by m.name, m.enabled desc, m.model_id"
)


async def read_by_names(line: Line, names: Sequence[str]) -> tuple[Snapshot, dict[str, ModelRow]]:
    """Names are not unique on the chain: the enabled model of a name wins, then the oldest."""
    rows = await line.fetch(_BY_NAMES, names)
    return snapshot_of(rows), {row["name"]: _model(row) for row in rows if row["name"] is not None}


def _model(row: asyncpg.Record) -> ModelRow:
    return ModelRow(*row[:5])
