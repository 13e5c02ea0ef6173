"""Reads of the index by key, gathered; one reader per kind, shared by all requests of this process."""

import attrs

from coordinatord.service.point_reads import Found, PointReads, with_snapshot
from coordinatord.store import catalog, jobs, providers, sessions, snapshot
from coordinatord.store.catalog import ModelRow
from coordinatord.store.database import Database
from coordinatord.store.jobs import JobRow
from coordinatord.store.providers import ProviderRow
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot


@attrs.frozen(slots=True)
class IndexReads:
    job: PointReads[bytes, Found[JobRow]]
    model: PointReads[str, Found[ModelRow]]
    provider: PointReads[int, Found[ProviderRow]]
    session: PointReads[bytes, SessionRow | None]  # by token hash
    position: PointReads[None, Snapshot]

    @classmethod
    def over(cls, database: Database) -> "IndexReads":
        return cls(
            job=PointReads(database, with_snapshot(jobs.read_by_ids)),
            model=PointReads(database, with_snapshot(catalog.read_by_names)),
            provider=PointReads(database, with_snapshot(providers.read_by_ids)),
            session=PointReads(database, _read_sessions),
            position=PointReads(database, _read_position),
        )


async def _read_sessions(database: Database, hashes: list[bytes]) -> dict[bytes, SessionRow | None]:
    async with database.connection() as connection:
        found = await sessions.read_sessions(connection, hashes)
    return {token_hash: found.get(token_hash) for token_hash in hashes}


async def _read_position(database: Database, _: list[None]) -> dict[None, Snapshot]:
    return {None: await snapshot.read_snapshot(database)}
