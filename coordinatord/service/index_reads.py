"""Reads of the index by key, gathered; one reader per kind, with a connection of its own, shared by all requests of
this process."""

import attrs

from coordinatord.service.kept_reads import RecentReads
from coordinatord.service.point_reads import PointReads
from coordinatord.store import catalog, jobs, providers, sessions, snapshot
from coordinatord.store.catalog import ModelRow
from coordinatord.store.database import Database
from coordinatord.store.jobs import JobRow
from coordinatord.store.lines import Line
from coordinatord.store.providers import ProviderRow
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot


@attrs.frozen(slots=True)
class IndexReads:
    job: RecentReads[bytes, JobRow]
    model: RecentReads[str, ModelRow]
    provider: RecentReads[int, ProviderRow]
    session: PointReads[bytes, SessionRow | None]  # by token hash
    position: PointReads[None, Snapshot]

    @classmethod
    def over(cls, database: Database) -> "IndexReads":
        return cls(
            job=RecentReads.over(database.line(), jobs.read_by_ids),
            model=RecentReads.over(database.line(), catalog.read_by_names),
            provider=RecentReads.over(database.line(), providers.read_by_ids),
            session=PointReads(database.line(), _read_sessions),
            position=PointReads(database.line(), _read_position),
        )


async def _read_sessions(line: Line, hashes: list[bytes]) -> dict[bytes, SessionRow | None]:
    found = await sessions.read_sessions(line, hashes)
    return {token_hash: found.get(token_hash) for token_hash in hashes}


async def _read_position(line: Line, _: list[None]) -> dict[None, Snapshot]:
    return {None: await snapshot.read_snapshot(line)}
