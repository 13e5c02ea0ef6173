"""Reads of the index by key, gathered; one reader per kind, with a connection of its own, shared by all requests of
this process."""

import attrs

from coordinatord.service.index_position import IndexPosition
from coordinatord.service.point_reads import Found, PointReads, with_snapshot
from coordinatord.store import catalog, jobs, providers, sessions
from coordinatord.store.catalog import ModelRow
from coordinatord.store.database import Database
from coordinatord.store.jobs import JobRow
from coordinatord.store.lines import Line
from coordinatord.store.providers import ProviderRow
from coordinatord.store.sessions import SessionRow


@attrs.frozen(slots=True)
class IndexReads:
    job: PointReads[bytes, Found[JobRow]]
    model: PointReads[str, Found[ModelRow]]
    provider: PointReads[int, Found[ProviderRow]]
    session: PointReads[bytes, SessionRow | None]  # by token hash
    position: IndexPosition

    @classmethod
    def over(cls, database: Database) -> "IndexReads":
        return cls(
            job=PointReads(database.line(), with_snapshot(jobs.read_by_ids)),
            model=PointReads(database.line(), with_snapshot(catalog.read_by_names)),
            provider=PointReads(database.line(), with_snapshot(providers.read_by_ids)),
            session=PointReads(database.line(), _read_sessions),
            position=IndexPosition(database.line()),
        )


async def _read_sessions(line: Line, hashes: list[bytes]) -> dict[bytes, SessionRow | None]:
    found = await sessions.read_sessions(line, hashes)
    return {token_hash: found.get(token_hash) for token_hash in hashes}
