"""Reads of the index by key, gathered; one reader per kind, with a connection of its own, shared by all requests of
this process."""

import attrs

from coordinatord.service.point_reads import Found, PointReads, with_snapshot
from coordinatord.service.recent import Recent
from coordinatord.store import catalog, jobs, providers
from coordinatord.store.catalog import ModelRow
from coordinatord.store.database import Database
from coordinatord.store.jobs import JobRow
from coordinatord.store.providers import ProviderRow
from coordinatord.store.snapshot import Snapshot, read_snapshot


@attrs.frozen(slots=True)
class IndexReads:
    job: PointReads[bytes, Found[JobRow]]
    model: PointReads[str, Found[ModelRow]]
    provider: PointReads[int, Found[ProviderRow]]
    position: Recent[Snapshot]

    @classmethod
    def over(cls, database: Database) -> "IndexReads":
        return cls(
            job=PointReads(database.line(), with_snapshot(jobs.read_by_ids)),
            model=PointReads(database.line(), with_snapshot(catalog.read_by_names)),
            provider=PointReads(database.line(), with_snapshot(providers.read_by_ids)),
            position=Recent(database.line(), read_snapshot),
        )
