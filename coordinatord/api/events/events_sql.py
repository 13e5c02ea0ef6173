"""Reads of the event log: the events after an id, and a job's current state as an event."""

from collections.abc import Hashable, Sequence
from typing import Final

import asyncpg
import attrs

from common.api.events import OUTCOME_BY_EVENT, EventKind
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows

_COLUMNS: Final = (
    "id, kind, block_number, block_time, job_id, owner, model_id, provider_id, designated, state, ended_because,"
    " takes_back"
)
_KIND_BY_STATE: Final = {(int(state), int(because)): kind for kind, (state, because) in OUTCOME_BY_EVENT.items()}


@attrs.frozen(slots=True)
class LoggedEvent:
    """Row of the event log. A reset, which replaces all earlier events, leaves the fields from `job_id` on unset."""

    id: int
    kind: EventKind
    block_number: int
    block_time: int
    job_id: bytes = b""
    owner: bytes = b""
    model_id: int = 0
    provider_id: int = 0
    designated: int = 0
    state: int = 0
    ended_because: int = 0
    taken_back_id: int | None = None
    message: bytes | None = attrs.field(default=None, eq=False, repr=False)  # encoded when first sent

    @property
    def keys(self) -> set[Hashable]:
        """Return the keys of all filters that may match the event."""
        return {
            None,
            ("job", self.job_id),
            ("owner", self.owner),
            ("provider", self.provider_id),
            ("provider", self.designated),
            ("model", self.model_id),
        }


@attrs.frozen(slots=True)
class EventFilter:
    """Filter of events by job, owner, model, provider, and state after the event. A filter by provider also passes the
    events of jobs designated to that provider. An empty filter passes every event. Every filter passes a reset."""

    job_id: bytes | None = None
    owner: bytes | None = None
    model_id: int | None = None
    provider_id: int | None = None
    state: int | None = None

    @property
    def key(self) -> Hashable:
        """Return the filter's most selective member. Only events that have this key can match the filter."""
        if self.job_id is not None:
            return "job", self.job_id
        if self.owner is not None:
            return "owner", self.owner
        if self.provider_id is not None:
            return "provider", self.provider_id
        return ("model", self.model_id) if self.model_id is not None else None

    def matches(self, event: LoggedEvent) -> bool:
        return event.kind == EventKind.RESET or (
            self.job_id in (None, event.job_id)
            and self.owner in (None, event.owner)
            and self.model_id in (None, event.model_id)
            and self.provider_id in (None, event.provider_id, event.designated)
            and self.state in (None, event.state)
        )


def to_reset_event(event: LoggedEvent) -> LoggedEvent:
    """Return a reset with the id of this event. The reset replaces all events up to this id."""
    return LoggedEvent(event.id, EventKind.RESET, event.block_number, event.block_time)


async def read_newest_events(connection: PreparedConnection, count: int) -> list[LoggedEvent]:
    """Read the last events of the log, in their order. There is at least one, because the log is never empty."""
    rows = await connection.fetch(f"select {_COLUMNS} from events order by id desc limit $1", count)
    return [_logged_event(row) for row in reversed(rows)]


async def read_events_after(
    connection: "PreparedConnection | Connection", after_id: int, limit: int
) -> list[LoggedEvent]:
    rows = await connection.fetch(f"select {_COLUMNS} from events where id > $1 order by id limit $2", after_id, limit)
    return [_logged_event(row) for row in rows]


async def is_logged(connection: Connection, event_id: int) -> bool:
    """Return True if the log contains this id. Old events are deleted from the log."""
    found: bool = await connection.fetchval("select exists (select from events where id = $1)", event_id)
    return found


async def read_events_between(
    connection: Connection, after_id: int, before_id: int, event_filter: EventFilter, limit: int
) -> list[LoggedEvent]:
    """Read the oldest events that pass the filter, with ids greater than `after_id` and less than `before_id`."""
    rows = await connection.fetch(
        f"select {_COLUMNS} from events where id > $1 and id < $2 and (kind = {EventKind.RESET}"
        " or ($3::bytea is null or job_id = $3) and ($4::bytea is null or owner = $4)"
        " and ($5::bigint is null or model_id = $5)"
        " and ($6::bigint is null or provider_id = $6 or designated = $6)"
        " and ($7::smallint is null or state = $7)) order by id limit $8",
        after_id,
        before_id,
        event_filter.job_id,
        event_filter.owner,
        event_filter.model_id,
        event_filter.provider_id,
        event_filter.state,
        limit,
    )
    return [_logged_event(row) for row in rows]


async def read_current_events(
    connection: PreparedConnection, job_ids: Sequence[bytes]
) -> tuple[Snapshot, dict[bytes, LoggedEvent]]:
    """Read the present states of jobs as events of the indexed block. The events have the id of the log's newest event,
    so that a reader can continue after this id without a gap."""
    rows = await connection.fetch(
        f"select (select max(id) from events) as newest, j.job_id, j.owner, j.model_id, j.provider_id, j.designated,"
        " case when j.state = 0 and j.expires_at < p.block_time then 3 else j.state end as state,"
        " case when j.state = 0 and j.expires_at < p.block_time then 5 else j.ended_because end as ended_because,"
        f" {SNAPSHOT_COLUMNS} from index_position p left join jobs j on j.job_id = any($1::bytea[])",
        job_ids,
    )
    snapshot = snapshot_from_rows(rows)
    return snapshot, {row["job_id"]: _current_event(row, snapshot) for row in rows if row["job_id"] is not None}


def _current_event(row: asyncpg.Record, snapshot: Snapshot) -> LoggedEvent:
    return LoggedEvent(
        id=row["newest"],
        kind=_KIND_BY_STATE[row["state"], row["ended_because"]],
        block_number=snapshot.block_number,
        block_time=snapshot.block_time,
        job_id=row["job_id"],
        owner=row["owner"],
        model_id=row["model_id"],
        provider_id=row["provider_id"],
        designated=row["designated"],
        state=row["state"],
        ended_because=row["ended_because"],
    )


def _logged_event(row: asyncpg.Record) -> LoggedEvent:
    kind = EventKind(row["kind"])
    if kind is EventKind.RESET:
        return LoggedEvent(row["id"], kind, row["block_number"], row["block_time"])
    return LoggedEvent(row["id"], kind, *tuple(row)[2:])
