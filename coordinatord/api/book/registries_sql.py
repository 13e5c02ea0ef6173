"""Reads of the indexed registries: asks, floors, windows, providers, models and the escrow allowlist."""

from collections.abc import Sequence
from typing import Final

import asyncpg
import attrs

from common.bundle import BUNDLE_MEMBER
from coordinatord.api.book.reliability_sql import ALL_MODELS, RELIABILITY_COLUMNS, ReliabilityRow
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows


async def _read_page(
    database: Database, page: str, order: str, *values: int | None
) -> tuple[Snapshot, list[asyncpg.Record]]:
    """Read the rows of the select `page`, sorted by `order`. The first column of this select must never be null,
    because null means that the page has no rows."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select page.*, {SNAPSHOT_COLUMNS} from index_position p left join lateral ({page}) page on true"
            f" order by {order}",
            *values,
        )
    return snapshot_from_rows(rows), [row for row in rows if row[0] is not None]


_SELECT_ASKS: Final = (
    f"select a.provider_id, a.model_id, a.sla, a.rate_in::text, a.rate_out::text, {RELIABILITY_COLUMNS},"
    f" case when position('{BUNDLE_MEMBER}'::bytea in v.evidence) > 0 then v.evidence end as announcement"
    " from asks a join providers v on v.provider_id = a.provider_id"
    " left join reliability r on r.provider_id = a.provider_id and r.model_id = a.model_id"
    " where v.listed and ($1::bigint is null or a.model_id = $1)"
    " order by a.provider_id, a.model_id, a.sla limit $2 offset $3"
)
_SELECT_FLOORS: Final = (
    "select a.model_id, a.sla, min(a.rate_in)::text as rate_in, min(a.rate_out)::text as rate_out"
    " from asks a join providers v using (provider_id) join models m using (model_id)"
    " where v.listed and ($1::bigint is null or a.model_id = $1) and ($2::bigint is null or a.sla = $2)"
    " group by a.model_id, a.sla order by a.model_id, a.sla limit $3 offset $4"
)


async def read_asks(
    database: Database, model_id: int | None, limit: int, offset: int
) -> tuple[Snapshot, list[asyncpg.Record]]:
    """Read asks with the provider's reliability. `announcement` is the provider's evidence if this evidence may
    announce bundles, otherwise null."""
    return await _read_page(
        database, _SELECT_ASKS, "page.provider_id, page.model_id, page.sla", model_id, limit, offset
    )


async def read_floors(
    database: Database, model_id: int | None, sla: int | None, limit: int, offset: int
) -> tuple[Snapshot, list[asyncpg.Record]]:
    """Read the lowest rate for input and the lowest rate for output, by model and window. The two rates may be from
    different providers."""
    return await _read_page(database, _SELECT_FLOORS, "page.model_id, page.sla", model_id, sla, limit, offset)


async def read_windows(database: Database) -> tuple[Snapshot, tuple[int, ...]]:
    """Return the completion windows that the market allows, in seconds, shortest first."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.sla_secs, {SNAPSHOT_COLUMNS} from index_position p left join slas s on s.allowed"
            " order by s.sla_secs"
        )
    return snapshot_from_rows(rows), tuple(row["sla_secs"] for row in rows if row["sla_secs"] is not None)


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
    requested: int
    reliability: ReliabilityRow


_PROVIDER_COLUMNS: Final = (
    "v.provider_id, v.operator, v.box_key, v.evidence, v.listed, v.reputation, v.allow_all_models,"
    " array(select a.model_id from provider_models a where a.provider_id = v.provider_id order by a.model_id)"
    f" as allowed_models, capacity(v) as capacity, v.active_jobs, v.requested, {RELIABILITY_COLUMNS}"
)
_JOIN_RELIABILITY: Final = f"left join reliability r on r.provider_id = v.provider_id and r.model_id = {ALL_MODELS}"
_SELECT_PROVIDERS: Final = (
    f"select {_PROVIDER_COLUMNS} from providers v {_JOIN_RELIABILITY}"
    " where v.provider_id > $2 order by v.provider_id limit $1"
)


async def read_providers(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[ProviderRow]]:
    """Return a page. The registry numbers providers from 1 without gaps, so an offset is a provider id."""
    snapshot, rows = await _read_page(database, _SELECT_PROVIDERS, "page.provider_id", limit, offset)
    return snapshot, [_provider_row(row) for row in rows]


_SELECT_PROVIDERS_BY_IDS: Final = (
    f"select {_PROVIDER_COLUMNS}, {SNAPSHOT_COLUMNS} from index_position p"
    f" left join providers v on v.provider_id = any($1) {_JOIN_RELIABILITY}"
)


async def read_providers_by_ids(
    connection: PreparedConnection, provider_ids: Sequence[int]
) -> tuple[Snapshot, dict[int, ProviderRow]]:
    rows = await connection.fetch(_SELECT_PROVIDERS_BY_IDS, provider_ids)
    return snapshot_from_rows(rows), {
        row["provider_id"]: _provider_row(row) for row in rows if row["provider_id"] is not None
    }


def _provider_row(row: asyncpg.Record) -> ProviderRow:
    return ProviderRow(*[*row[:11], ReliabilityRow(*row[11:16])])


@attrs.frozen(slots=True)
class ModelRow:
    model_id: int
    name: str
    enabled: bool
    owned_by: str
    params_schema: str


_MODEL_COLUMNS: Final = "m.model_id, m.name, m.enabled, m.owned_by, m.params_schema"
_SELECT_MODELS: Final = f"select {_MODEL_COLUMNS} from models m order by m.model_id limit $1 offset $2"
_SELECT_ALLOWLIST: Final = "select key, status, entry from allowlist order by key limit $1 offset $2"


async def read_models(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[ModelRow]]:
    snapshot, rows = await _read_page(database, _SELECT_MODELS, "page.model_id", limit, offset)
    return snapshot, [_model_row(row) for row in rows]


_SELECT_MODELS_BY_NAMES: Final = (
    f"select distinct on (m.name) {_MODEL_COLUMNS}, {SNAPSHOT_COLUMNS} from index_position p"
    " left join models m on m.name = any($1) order by m.name, m.enabled desc, m.model_id"
)


async def read_models_by_names(
    connection: PreparedConnection, names: Sequence[str]
) -> tuple[Snapshot, dict[str, ModelRow]]:
    """Return models by name. Names are not unique on the chain. If several models have a name, an enabled model takes
    precedence, then the oldest model."""
    rows = await connection.fetch(_SELECT_MODELS_BY_NAMES, names)
    return snapshot_from_rows(rows), {row["name"]: _model_row(row) for row in rows if row["name"] is not None}


def _model_row(row: asyncpg.Record) -> ModelRow:
    return ModelRow(*row[:5])


async def read_allowlist(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[asyncpg.Record]]:
    return await _read_page(database, _SELECT_ALLOWLIST, "page.key", limit, offset)
