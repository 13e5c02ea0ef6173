"""Reads of the indexed registries: asks, floors, windows, providers, models and the escrow allowlist."""

from collections.abc import Sequence
from typing import Final

import asyncpg
import attrs

from common.bundle import BUNDLE_KEY
from coordinatord.api.book.reliability_sql import ALL_MODELS, RELIABILITY_COLUMNS, ReliabilityRow
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class AskRow:
    provider_id: int
    model_id: int
    sla: int
    rate_in: str
    rate_out: str
    reliability: ReliabilityRow
    announcement: bytes | None  # the provider's evidence, if it may announce bundles


@attrs.frozen(slots=True)
class FloorRow:
    """Lowest rate for input and for output. The two may be from different providers."""

    model_id: int
    sla: int
    rate_in: str
    rate_out: str


async def read_asks(database: Database, model_id: int | None, limit: int, offset: int) -> tuple[Snapshot, list[AskRow]]:
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select page.*, {SNAPSHOT} from index_position p left join lateral (select a.provider_id, a.model_id,"
            f" a.sla, a.rate_in::text, a.rate_out::text, {RELIABILITY_COLUMNS},"
            f" case when position('{BUNDLE_KEY}'::bytea in v.evidence) > 0 then v.evidence end as announcement"
            " from asks a"
            " join providers v on v.provider_id = a.provider_id"
            " left join reliability r on r.provider_id = a.provider_id and r.model_id = a.model_id"
            " where v.listed and ($1::bigint is null or a.model_id = $1)"
            " order by a.provider_id, a.model_id, a.sla limit $2 offset $3) page on true"
            " order by page.provider_id, page.model_id, page.sla",
            model_id,
            limit,
            offset,
        )
    return snapshot_of(rows), [
        AskRow(*[*row[:5], ReliabilityRow(*row[5:10]), row["announcement"]])
        for row in rows
        if row["provider_id"] is not None
    ]


async def read_floors(
    database: Database, model_id: int | None, sla: int | None, limit: int, offset: int
) -> tuple[Snapshot, list[FloorRow]]:
    async with database.connection_for_lists() as connection:
        rows: list[asyncpg.Record] = await connection.fetch(
            f"select page.*, {SNAPSHOT} from index_position p left join lateral (select a.model_id, a.sla,"
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


async def read_windows(database: Database) -> tuple[Snapshot, tuple[int, ...]]:
    """Return the completion windows that the market allows, in seconds, shortest first."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select s.sla_secs, {SNAPSHOT} from index_position p left join slas s on s.allowed order by s.sla_secs"
        )
    return snapshot_of(rows), tuple(row["sla_secs"] for row in rows if row["sla_secs"] is not None)


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


_PROVIDER: Final = (
    "v.provider_id, v.operator, v.box_key, v.evidence, v.listed, v.reputation, v.allow_all_models,"
    " array(select a.model_id from provider_models a where a.provider_id = v.provider_id order by a.model_id)"
    f" as allowed_models, capacity(v) as capacity, v.active_jobs, v.requested, {RELIABILITY_COLUMNS}"
)
_SUMS: Final = f"left join reliability r on r.provider_id = v.provider_id and r.model_id = {ALL_MODELS}"


async def read_providers(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[ProviderRow]]:
    """Return a page. The registry numbers providers from 1 without gaps, so an offset is a provider id."""
    async with database.connection_for_lists() as connection:
        rows = await connection.fetch(
            f"select v.*, {SNAPSHOT} from index_position p left join lateral (select {_PROVIDER} from providers v"
            f" {_SUMS}"
            " where v.provider_id > $2 order by v.provider_id limit $1) v on true order by v.provider_id",
            limit,
            offset,
        )
    return snapshot_of(rows), [_provider(row) for row in rows if row["provider_id"] is not None]


_BY_IDS: Final = (
    f"select {_PROVIDER}, {SNAPSHOT} from index_position p left join providers v on v.provider_id = any($1) {_SUMS}"
)


async def read_by_ids(line: PreparedConnection, provider_ids: Sequence[int]) -> tuple[Snapshot, dict[int, ProviderRow]]:
    rows = await line.fetch(_BY_IDS, provider_ids)
    return snapshot_of(rows), {row["provider_id"]: _provider(row) for row in rows if row["provider_id"] is not None}


def _provider(row: asyncpg.Record) -> ProviderRow:
    return ProviderRow(*[*row[:11], ReliabilityRow(*row[11:16])])


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
            f"select m.*, {SNAPSHOT} from index_position p left join lateral"
            f" (select {_MODEL} from models m order by m.model_id limit $1 offset $2) m on true order by m.model_id",
            limit,
            offset,
        )
    return snapshot_of(rows), [_model(row) for row in rows if row["model_id"] is not None]


_BY_NAMES: Final = (
    f"select distinct on (m.name) {_MODEL}, {SNAPSHOT} from index_position p"
    " left join models m on m.name = any($1) order by m.name, m.enabled desc, m.model_id"
)


async def read_by_names(line: PreparedConnection, names: Sequence[str]) -> tuple[Snapshot, dict[str, ModelRow]]:
    """Return models by name. Names are not unique on the chain: the enabled model of a name wins, then the oldest."""
    rows = await line.fetch(_BY_NAMES, names)
    return snapshot_of(rows), {row["name"]: _model(row) for row in rows if row["name"] is not None}


def _model(row: asyncpg.Record) -> ModelRow:
    return ModelRow(*row[:5])


@attrs.frozen(slots=True)
class AllowlistRow:
    key: bytes
    status: int
    entry: str


async def read_allowlist(database: Database, limit: int, offset: int) -> tuple[Snapshot, list[AllowlistRow]]:
    async with database.connection() as connection:
        rows = await connection.fetch(
            f"select e.*, {SNAPSHOT} from index_position p left join lateral (select key, status, entry from allowlist"
            " order by key limit $1 offset $2) e on true order by e.key",
            limit,
            offset,
        )
    return snapshot_of(rows), [AllowlistRow(*row[:3]) for row in rows if row["key"] is not None]
