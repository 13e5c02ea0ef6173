"""Begin a term (the time for which one process holds a role) with a confirmed commit, and repair the database after a
promotion.

An asynchronous standby may lack the last commits of the primary that it replaces, and would assign their ids again. So
the first role holder after a promotion moves every sequence forward. It also logs a `reset` event, after which readers
of events reload the objects that they follow.
"""

from typing import Final

import structlog

from common.api.events import EventKind
from coordinatord.base import metrics
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.epoch import SYSTEM_IDENTIFIER_SQL, TIMELINE_SQL
from coordinatord.storage.database.transactions import transaction

log = structlog.get_logger(__name__)

# A promoted standby may lack the last ids that the failed server issued. This step is larger than their number, so no
# id is issued twice.
_SEQUENCE_STEP: Final = 1_000_000
_MOVE_SEQUENCES: Final = (
    "select setval(format('%I.%I', schemaname, sequencename), coalesce(last_value, 0) + $1) from pg_sequences"
    " where schemaname = current_schema()"
)
_APPEND_RESET: Final = (
    f"insert into events (kind, block_number, block_time) select {EventKind.RESET:d}, block_number, block_time"
    " from index_position"
)


async def begin_term(connection: Connection) -> None:
    """Write the row of `server_epoch` and wait for the commit. If the cluster or the timeline has changed, move the
    sequences and log a `reset` event.

    A role calls this before it acts. With synchronous replication, the commit proves that the standby has everything
    that was committed before, so the term cannot act on a row that a failover would take back. Raise CommitUnconfirmed
    when the standby does not confirm the commit.
    """
    async with transaction(connection):
        before = await connection.fetchrow("select system_identifier, timeline from server_epoch for update")
        row = await connection.fetchrow(
            "insert into server_epoch as e (system_identifier, timeline)"
            f" values ({SYSTEM_IDENTIFIER_SQL}, {TIMELINE_SQL}) on conflict (only_row)"
            " do update set terms = e.terms + 1,"
            " since = case when (e.system_identifier, e.timeline) = (excluded.system_identifier, excluded.timeline)"
            " then e.since else clock_timestamp() end,"
            " system_identifier = excluded.system_identifier, timeline = excluded.timeline"
            " returning system_identifier, timeline"
        )
        promoted = before is not None and before != row
        if promoted:
            await connection.execute(_MOVE_SEQUENCES, _SEQUENCE_STEP)
            await connection.execute(_APPEND_RESET)
    if promoted:
        metrics.database_promotions.inc()
        log.warning("database promoted", timeline=row["timeline"], before=before["timeline"])
