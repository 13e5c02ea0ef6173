"""Fan-out in the database: its position in the event log, reported changes of batches, and new messages."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection

MAX_WAITING_MESSAGES: Final = 10_000  # per endpoint
_BATCH_CHANGE_RETENTION: Final = "interval '1 day'"  # older changes are skipped, for example after webhooks were off
_UNREPORTED: Final = (
    "reported < num_nonnulls(in_progress_at, cancelling_at, failed_at, completed_at, expired_at, cancelled_at)"
)


@attrs.frozen(slots=True)
class Addressee:
    """Endpoint that messages are written for. `queue_room` is the number of further messages that may wait for the
    endpoint. `has_missed_messages` is True if messages were skipped and the endpoint was not sent a reset since."""

    id: str
    owner: bytes
    wanted_events: list[str]
    queue_room: int
    has_missed_messages: bool


async def lock_addressees(connection: Connection, owners: Sequence[bytes] | None) -> list[Addressee]:
    """Lock the enabled endpoints of these owners, or of all owners. The lock is needed because writing a message
    changes the number of waiting messages in the endpoint's row."""
    rows = await connection.fetch(
        f"select id, owner, wanted, {MAX_WAITING_MESSAGES} - waiting, missed from webhooks where disabled_at is null"
        " and ($1::bytea[] is null or owner = any($1)) order by id for update",
        list(owners) if owners is not None else None,
    )
    return [Addressee(*row) for row in rows]


@attrs.frozen(slots=True)
class NewMessage:
    webhook_id: str
    message_id: str
    message_type: str
    body: bytes


async def write_messages(connection: Connection, messages: Sequence[NewMessage]) -> None:
    """Write messages that are due now, for endpoints that the transaction has locked."""
    await connection.execute(
        "with written as (insert into webhook_messages (webhook_id, message_id, type, body)"
        " select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) returning webhook_id),"
        " counted as (select webhook_id, count(*) as many from written group by webhook_id)"
        " update webhooks w set waiting = waiting + many, due_at = least(due_at, clock_timestamp())"
        " from counted c where c.webhook_id = w.id",
        [message.webhook_id for message in messages],
        [message.message_id for message in messages],
        [message.message_type for message in messages],
        [message.body for message in messages],
    )


async def record_missed(connection: Connection, missed: dict[str, int]) -> None:
    """Record the number of messages per endpoint that were skipped because too many were waiting."""
    await connection.execute(
        "update webhooks w set missed = true, dropped = dropped + many"
        " from unnest($1::text[], $2::integer[]) m (id, many) where m.id = w.id",
        list(missed),
        list(missed.values()),
    )


async def clear_missed(connection: Connection, webhook_ids: Sequence[str]) -> None:
    """Record that a reset was written for each of these endpoints, in place of the messages that were skipped."""
    await connection.execute("update webhooks set missed = false where id = any($1::text[])", list(webhook_ids))


async def lock_position(connection: Connection) -> int | None:
    """Lock the position until the transaction ends, and return the id of the last event that was fanned out. Return
    None while another process fans out."""
    return await connection.fetchval(  # type: ignore[no-any-return] # asyncpg is untyped
        "select event_id from webhook_position for update skip locked"
    )


async def move_position(connection: Connection, event_id: int) -> None:
    await connection.execute("update webhook_position set event_id = $1", event_id)


async def read_newest_event_id(connection: Connection) -> int:
    newest: int = await connection.fetchval("select max(id) from events")
    return newest


@attrs.frozen(slots=True)
class BatchStatusChange:
    batch_id: str
    owner: bytes
    status: str
    happened_at: datetime
    total: int | None
    completed: int | None
    failed: int | None
    output_file_id: str | None
    error_file_id: str | None


async def take_batch_changes(connection: Connection, limit: int) -> tuple[list[BatchStatusChange], bool]:
    """Mark the changes of up to `limit` batches as reported. Return the changes that were unreported, oldest first, and
    True when more batches may wait. Skip changes that are older than a day."""
    rows = await connection.fetch(
        f"with taken as (select * from batches where {_UNREPORTED} order by place limit $1 for update skip locked),"
        " marked as (update batches b set reported = num_nonnulls(b.in_progress_at, b.cancelling_at, b.failed_at,"
        " b.completed_at, b.expired_at, b.cancelled_at) from taken t where b.id = t.id)"
        " select t.id, t.owner, c.status, c.happened, case when c.ended then t.total end,"
        " case when c.ended then t.completed end, case when c.ended then t.failed end,"
        " case when c.ended then t.output_file_id end, case when c.ended then t.error_file_id end,"
        f" c.number > t.reported and c.happened > clock_timestamp() - {_BATCH_CHANGE_RETENTION} as is_new"
        " from taken t cross join lateral (select *, row_number() over (order by happened, ended) as number from"
        " (values ('in_progress', t.in_progress_at, false), ('cancelling', t.cancelling_at, false),"
        " ('failed', t.failed_at, true), ('completed', t.completed_at, true), ('expired', t.expired_at, true),"
        " ('cancelled', t.cancelled_at, true)) as v(status, happened, ended) where happened is not null) c"
        " order by c.happened",
        limit,
    )
    changes = [BatchStatusChange(*tuple(row)[:-1]) for row in rows if row["is_new"]]
    return changes, len({row["id"] for row in rows}) == limit
