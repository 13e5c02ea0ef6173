"""Read the state of replication from the primary."""

from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection

# A PostgreSQL role without the rights of pg_read_all_stats sees the standbys without their states.
_READ_REPLICATION: Final = (
    "select current_setting('synchronous_standby_names') as names, current_setting('synchronous_commit') as commits,"
    " current_setting('fsync')::boolean as fsync, count(*) as standbys,"
    " count(*) filter (where sync_state in ('sync', 'quorum')) as synchronous,"
    " count(*) filter (where sync_state is null) as hidden,"
    " coalesce(max(extract(epoch from replay_lag)), 0)::float8 as lag_s from pg_stat_replication"
)
_REPLICATED_COMMIT_MODES: Final = ("on", "remote_write", "remote_apply")


@attrs.frozen(slots=True)
class Replication:
    """State of replication. `standby_names` is the setting synchronous_standby_names. `standby_count` counts connected
    standbys. `hidden_count` counts standbys whose state this PostgreSQL role may not see. `lag_s` is the lag of the
    slowest standby."""

    standby_names: str
    synchronous_commit: str
    fsync: bool
    standby_count: int
    synchronous_count: int
    hidden_count: int
    lag_s: float

    @property
    def is_required(self) -> bool:
        """Return True if commits wait for a standby."""
        return bool(self.standby_names) and self.synchronous_commit in _REPLICATED_COMMIT_MODES


async def read_replication(connection: Connection) -> Replication:
    row = await connection.fetchrow(_READ_REPLICATION)
    return Replication(
        row["names"],
        row["commits"],
        row["fsync"],
        row["standbys"],
        row["synchronous"],
        row["hidden"],
        row["lag_s"],
    )
