"""Webhook tables: endpoints of owners, the messages that wait for them, and how far the event log is told.

The database's clock says what is due: it is the one clock that all processes share.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, Literal

import asyncpg
import attrs

from coordinatord.base import metrics
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

DisabledBecause = Literal["gone", "failing"]

MOST_WAITING: Final = 10_000  # messages for one endpoint
_UNANSWERED_KEPT: Final = "interval '7 days'"  # endpoints that never answered well
_DISABLED_KEPT: Final = "interval '30 days'"
_BATCH_CHANGE_KEPT: Final = "interval '1 day'"  # later changes have no message: webhooks were off
_UNREPORTED: Final = (
    "reported < num_nonnulls(in_progress_at, cancelling_at, failed_at, completed_at, expired_at, cancelled_at)"
)


@attrs.frozen(slots=True)
class Endpoint:
    id: str
    url: str
    wanted: tuple[str, ...]
    created_at: datetime
    disabled_at: datetime | None
    disabled_because: DisabledBecause | None
    failing_since: datetime | None
    last_attempt_at: datetime | None
    last_status: int | None
    waiting: int
    delivered: int
    dropped: int


_COLUMNS: Final = ", ".join(field.name for field in attrs.fields(Endpoint))


@attrs.frozen(slots=True)
class NewEndpoint:
    """`secret` is sealed."""

    id: str
    owner: bytes
    url: str
    wanted: Sequence[str]
    secret: bytes


async def add(connection: Connection, new: NewEndpoint, most: int) -> Endpoint | None:
    """Within a transaction, which may be made again. None when the owner has `most` of them."""
    await connection.execute(
        "select pg_advisory_xact_lock(hashtextextended('webhooks ' || encode($1, 'hex'), 0))", new.owner
    )
    row = await connection.fetchrow(
        "insert into webhooks (id, owner, url, wanted, secret) select $1, $2, $3, $4, $5"
        " where (select count(*) from webhooks where owner = $2 and id <> $1) < $6"
        f" on conflict (id) do update set url = excluded.url returning {_COLUMNS}",
        new.id,
        new.owner,
        new.url,
        list(new.wanted),
        new.secret,
        most,
    )
    return _endpoint(row) if row is not None else None


async def list_of(connection: Connection, owner: bytes) -> list[Endpoint]:
    rows = await connection.fetch(f"select {_COLUMNS} from webhooks where owner = $1 order by place", owner)
    return [_endpoint(row) for row in rows]


async def remove(connection: Connection, webhook_id: str, owner: bytes) -> bool:
    """With all that waits for it. False when the owner has no such endpoint."""
    found = await connection.fetchval(
        "delete from webhooks where id = $1 and owner = $2 returning true", webhook_id, owner
    )
    return found is True


@attrs.frozen(slots=True)
class Addressee:
    """An endpoint that messages are written for."""

    id: str
    owner: bytes
    wanted: tuple[str, ...]
    room: int
    missed: bool


async def addressees(connection: Connection, owners: Sequence[bytes] | None) -> list[Addressee]:
    """Endpoints of these owners, or of all; none that is disabled. They are locked: what waits is counted in them."""
    rows = await connection.fetch(
        "select id, owner, wanted, waiting, missed from webhooks where disabled_at is null"
        " and ($1::bytea[] is null or owner = any($1)) order by id for update",
        list(owners) if owners is not None else None,
    )
    return [
        Addressee(row["id"], row["owner"], tuple(row["wanted"]), MOST_WAITING - row["waiting"], row["missed"])
        for row in rows
    ]


async def addressee(connection: Connection, webhook_id: str, owner: bytes) -> tuple[Endpoint, bool] | None:
    """One endpoint, locked, and true when a test of it waits already."""
    row = await connection.fetchrow(
        f"select {_COLUMNS}, exists (select from webhook_messages m where m.webhook_id = w.id"
        " and m.type = 'webhook.test') as tested from webhooks w where id = $1 and owner = $2 for update",
        webhook_id,
        owner,
    )
    return (_endpoint(row), row["tested"]) if row is not None else None


@attrs.frozen(slots=True)
class NewMessage:
    webhook_id: str
    message_id: str
    type: str
    body: bytes


async def write(connection: Connection, messages: Sequence[NewMessage]) -> None:
    """Messages that are due now, for endpoints that the transaction has locked."""
    await connection.execute(
        "with written as (insert into webhook_messages (webhook_id, message_id, type, body)"
        " select * from unnest($1::text[], $2::text[], $3::text[], $4::bytea[]) returning webhook_id),"
        " counted as (select webhook_id, count(*) as many from written group by webhook_id)"
        " update webhooks w set waiting = waiting + many, due_at = least(due_at, clock_timestamp())"
        " from counted c where c.webhook_id = w.id",
        [message.webhook_id for message in messages],
        [message.message_id for message in messages],
        [message.type for message in messages],
        [message.body for message in messages],
    )


async def note_missed(connection: Connection, missed: dict[str, int]) -> None:
    """Messages that were not written for want of room, by endpoint."""
    await connection.execute(
        "update webhooks w set missed = true, dropped = dropped + many"
        " from unnest($1::text[], $2::integer[]) m (id, many) where m.id = w.id",
        list(missed),
        list(missed.values()),
    )


async def note_told(connection: Connection, webhook_ids: Sequence[str]) -> None:
    """These endpoints were told that they missed something."""
    await connection.execute("update webhooks set missed = false where id = any($1::text[])", list(webhook_ids))


# --- how far the log is told -----------------------------------------------------------------------------------


async def take_position(connection: Connection) -> int | None:
    """Id of the last event that was told; None while another process tells. Locked until the transaction ends."""
    return await connection.fetchval(  # type: ignore[no-any-return] # asyncpg is untyped
        "select event_id from webhook_position for update skip locked"
    )


async def move_position(connection: Connection, event_id: int) -> None:
    await connection.execute("update webhook_position set event_id = $1", event_id)


async def is_known(connection: Connection, event_id: int) -> bool:
    """False when the log does not reach back to this event: nobody knows what came after it."""
    found: bool = await connection.fetchval("select exists (select from events where id = $1)", event_id)
    return found


async def newest_event(connection: Connection) -> int:
    newest: int = await connection.fetchval("select max(id) from events")
    return newest


@attrs.frozen(slots=True)
class BatchNews:
    batch_id: str
    owner: bytes
    status: str
    happened: datetime
    total: int | None
    completed: int | None
    failed: int | None
    output_file_id: str | None
    error_file_id: str | None


async def take_batches(connection: Connection, limit: int) -> tuple[list[BatchNews], bool]:
    """Take up to `limit` batches with unreported changes and mark these as reported. Return the changes, oldest first,
    and True when more batches may wait. A change of more than a day ago is skipped."""
    rows = await connection.fetch(
        f"with taken as (select * from batches where {_UNREPORTED} order by place limit $1 for update skip locked),"
        " marked as (update batches b set reported = num_nonnulls(b.in_progress_at, b.cancelling_at, b.failed_at,"
        " b.completed_at, b.expired_at, b.cancelled_at) from taken t where b.id = t.id)"
        " select t.id, t.owner, c.status, c.happened, case when c.ended then t.total end,"
        " case when c.ended then t.completed end, case when c.ended then t.failed end,"
        " case when c.ended then t.output_file_id end, case when c.ended then t.error_file_id end,"
        f" c.number > t.reported and c.happened > clock_timestamp() - {_BATCH_CHANGE_KEPT} as is_new"
        " from taken t cross join lateral (select *, row_number() over (order by happened, ended) as number from"
        " (values ('in_progress', t.in_progress_at, false), ('cancelling', t.cancelling_at, false),"
        " ('failed', t.failed_at, true), ('completed', t.completed_at, true), ('expired', t.expired_at, true),"
        " ('cancelled', t.cancelled_at, true)) as v(status, happened, ended) where happened is not null) c"
        " order by c.happened",
        limit,
    )
    news = [BatchNews(*tuple(row)[:-1]) for row in rows if row["is_new"]]
    return news, len({row["id"] for row in rows}) == limit


# --- turns -----------------------------------------------------------------------------------------------------


@attrs.frozen(slots=True)
class Turn:
    """An endpoint that a process has for a while, with the messages that it posts."""

    webhook_id: str
    url: str
    secret: bytes
    failures: int


async def take_turns(
    connection: Connection, most: int, seconds: float, *, quick: bool, except_for: Collection[str] = ()
) -> list[Turn]:
    """Take endpoints whose messages are due, the longest waiting first. No other process takes them for `seconds`."""
    rows = await connection.fetch(
        "update webhooks set not_before = clock_timestamp() + $2 * interval '1 second' where id in"
        " (select id from webhooks where quick = $3 and turn_at <= statement_timestamp() and id <> all($4::text[])"
        " order by turn_at limit $1 for update skip locked) returning id, url, secret, failures",
        most,
        seconds,
        quick,
        list(except_for),
    )
    return [Turn(*row) for row in rows]


async def seconds_to_next(connection: Connection) -> float | None:
    """Until an endpoint has its turn; below zero when one is due."""
    seconds: float | None = await connection.fetchval(
        "select extract(epoch from min(at) - clock_timestamp())::float8 from ("
        " (select turn_at as at from webhooks where quick and turn_at is not null order by turn_at limit 1)"
        " union all"
        " (select turn_at from webhooks where not quick and turn_at is not null order by turn_at limit 1)) t"
    )
    return seconds


@attrs.frozen(slots=True)
class DueMessage:
    id: int
    message_id: str
    body: bytes
    attempts: int


async def read_due(connection: Connection, webhook_id: str, most: int) -> list[DueMessage]:
    rows = await connection.fetch(
        "select id, message_id, body, attempts from webhook_messages where webhook_id = $1"
        " and due_at <= statement_timestamp() order by due_at, id limit $2",
        webhook_id,
        most,
    )
    return [DueMessage(*row) for row in rows]


@attrs.frozen(slots=True)
class TurnEnd:
    """How a turn went. `later`: seconds until the next attempt, by message. `pause`: seconds for the endpoint."""

    delivered: Sequence[int]
    given_up: Sequence[int]
    later: dict[int, float]
    failures: int
    status: int | None
    quick: bool
    pause: float


async def end_turn(connection: Connection, webhook_id: str, end: TurnEnd) -> None:
    """Within a transaction. An endpoint that was removed meanwhile is left alone."""
    if not await connection.fetchval("select true from webhooks where id = $1 for update", webhook_id):
        return
    delivered = await _drop(connection, end.delivered)
    given_up = await _drop(connection, end.given_up)
    if end.later:
        await connection.execute(
            "update webhook_messages m set attempts = attempts + 1,"
            " due_at = clock_timestamp() + seconds * interval '1 second'"
            " from unnest($1::bigint[], $2::float8[]) l (id, seconds) where l.id = m.id",
            list(end.later),
            list(end.later.values()),
        )
    await connection.execute(
        "update webhooks set waiting = waiting - $2 - $3, delivered = delivered + $2, dropped = dropped + $3,"
        " failures = $4::integer, last_status = $5, last_attempt_at = clock_timestamp(), quick = $6,"
        " failing_since = case when $4 > 0 then coalesce(failing_since, clock_timestamp()) end,"
        " due_at = (select min(due_at) from webhook_messages where webhook_id = $1),"
        " not_before = clock_timestamp() + $7 * interval '1 second' where id = $1",
        webhook_id,
        delivered,
        given_up,
        end.failures,
        end.status,
        end.quick,
        end.pause,
    )


async def put_off(connection: Connection, webhook_id: str, pause: float) -> None:
    """The turn ends with nothing posted."""
    await connection.execute(
        "update webhooks set due_at = (select min(due_at) from webhook_messages where webhook_id = $1),"
        " not_before = clock_timestamp() + $2 * interval '1 second' where id = $1",
        webhook_id,
        pause,
    )


async def disable(connection: Connection, webhook_id: str, because: DisabledBecause) -> None:
    """Nothing more is posted to it; what waited is dropped."""
    await connection.execute("delete from webhook_messages where webhook_id = $1", webhook_id)
    await connection.execute(
        "update webhooks set disabled_at = clock_timestamp(), disabled_because = $2, dropped = dropped + waiting,"
        " waiting = 0, due_at = null where id = $1 and disabled_at is null",
        webhook_id,
        because,
    )


async def has_failed_for(connection: Connection, webhook_id: str, seconds: float) -> bool:
    found: bool | None = await connection.fetchval(
        "select failing_since <= clock_timestamp() - $2 * interval '1 second' from webhooks where id = $1",
        webhook_id,
        seconds,
    )
    return found is True


async def _drop(connection: Connection, ids: Sequence[int]) -> int:
    """How many of them were still there: a process that took too long finds some posted by another."""
    if not ids:
        return 0
    gone = await connection.fetch("delete from webhook_messages where id = any($1::bigint[]) returning id", list(ids))
    return len(gone)


async def drop_old(connection: Connection) -> None:
    """Drop endpoints that never answered well in a week, and those that were disabled a month ago."""
    await remove_due(connection, "webhooks", f"delivered = 0 and created_at < clock_timestamp() - {_UNANSWERED_KEPT}")
    await remove_due(connection, "webhooks", f"disabled_at < clock_timestamp() - {_DISABLED_KEPT}")


async def show_counts(connection: Connection) -> None:
    """Metrics of endpoints by state, of messages that wait, and of the time that they wait for us."""
    row = await connection.fetchrow(
        "select count(*) filter (where disabled_at is null and failing_since is null) as working,"
        " count(*) filter (where disabled_at is null and failing_since is not null) as failing,"
        " count(*) filter (where disabled_at is not null) as disabled,"
        " coalesce(sum(waiting), 0)::bigint as waiting,"
        " greatest(0, extract(epoch from clock_timestamp() - min(turn_at) filter (where quick))::float8,"
        " (select extract(epoch from clock_timestamp() - happened)::float8 from events"
        " where id > (select event_id from webhook_position) order by id limit 1)) as late from webhooks"
    )
    metrics.webhook_late.set(row["late"])
    for state in ("working", "failing", "disabled"):
        metrics.webhooks.labels(state).set(row[state])
    metrics.webhook_messages_waiting.set(row["waiting"])


def _endpoint(row: asyncpg.Record) -> Endpoint:
    values = {field.name: row[field.name] for field in attrs.fields(Endpoint)}
    return Endpoint(**{**values, "wanted": tuple(values["wanted"])})
