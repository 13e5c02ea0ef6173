"""Turns of endpoints: one process posts the due messages of an endpoint and stores the results.

The database's clock decides which messages are due, because all processes share that clock.
"""

from collections.abc import Collection, Sequence

import attrs

from coordinatord.api.webhooks.endpoints_sql import DisabledBecause
from coordinatord.storage.database.connections import Connection


@attrs.frozen(slots=True)
class EndpointTurn:
    """Webhook endpoint that one process has leased, to deliver the endpoint's due messages."""

    webhook_id: str
    url: str
    secret: bytes
    failures_in_a_row: int


async def take_turns(
    connection: Connection, limit: int, lease_s: float, *, quick: bool, except_for: Collection[str] = ()
) -> list[EndpointTurn]:
    """Take endpoints with due messages, longest waiting first. Other processes skip these endpoints for `lease_s`
    seconds."""
    rows = await connection.fetch(
        "update webhooks set not_before = clock_timestamp() + $2 * interval '1 second' where id in"
        " (select id from webhooks where quick = $3 and turn_at <= statement_timestamp() and id <> all($4::text[])"
        " order by turn_at limit $1 for update skip locked) returning id, url, secret, failures",
        limit,
        lease_s,
        quick,
        list(except_for),
    )
    return [EndpointTurn(*row) for row in rows]


@attrs.frozen(slots=True)
class DueMessage:
    id: int
    message_id: str
    body: bytes
    attempts: int


async def read_due_messages(connection: Connection, webhook_id: str, limit: int) -> list[DueMessage]:
    rows = await connection.fetch(
        "select id, message_id, body, attempts from webhook_messages where webhook_id = $1"
        " and due_at <= statement_timestamp() order by due_at, id limit $2",
        webhook_id,
        limit,
    )
    return [DueMessage(*row) for row in rows]


@attrs.frozen(slots=True)
class TurnResult:
    """Outcome of a turn. `retry_delays_s` has the seconds until the next attempt of each failed message, by its id. The
    endpoint has no turn for the next `pause_s` seconds."""

    delivered_ids: Sequence[int]
    given_up_ids: Sequence[int]
    retry_delays_s: dict[int, float]
    failures_in_a_row: int
    last_status: int | None
    is_quick: bool
    pause_s: float


async def end_turn(connection: Connection, webhook_id: str, result: TurnResult) -> float:
    """Store the outcome of a turn, in a transaction. Return the seconds for which the endpoint has been failing. Do
    nothing for an endpoint that was removed."""
    if not await connection.fetchval("select true from webhooks where id = $1 for update", webhook_id):
        return 0.0
    delivered = await _delete_messages(connection, result.delivered_ids)
    given_up = await _delete_messages(connection, result.given_up_ids)
    if result.retry_delays_s:
        await connection.execute(
            "update webhook_messages m set attempts = attempts + 1,"
            " due_at = clock_timestamp() + seconds * interval '1 second'"
            " from unnest($1::bigint[], $2::float8[]) l (id, seconds) where l.id = m.id",
            list(result.retry_delays_s),
            list(result.retry_delays_s.values()),
        )
    failing_for: float = await connection.fetchval(
        "update webhooks set waiting = waiting - $2 - $3, delivered = delivered + $2, dropped = dropped + $3,"
        " failures = $4::integer, last_status = $5, last_attempt_at = clock_timestamp(), quick = $6,"
        " failing_since = case when $4 > 0 then coalesce(failing_since, clock_timestamp()) end,"
        " due_at = (select min(due_at) from webhook_messages where webhook_id = $1),"
        " not_before = clock_timestamp() + $7 * interval '1 second' where id = $1"
        " returning coalesce(extract(epoch from clock_timestamp() - failing_since), 0)::float8",
        webhook_id,
        delivered,
        given_up,
        result.failures_in_a_row,
        result.last_status,
        result.is_quick,
        result.pause_s,
    )
    return failing_for


async def end_empty_turn(connection: Connection, webhook_id: str, pause: float) -> None:
    """End a turn that posted nothing. The endpoint has no turn for the next `pause` seconds."""
    await connection.execute(
        "update webhooks set due_at = (select min(due_at) from webhook_messages where webhook_id = $1),"
        " not_before = clock_timestamp() + $2 * interval '1 second' where id = $1",
        webhook_id,
        pause,
    )


async def disable_endpoint(connection: Connection, webhook_id: str, reason: DisabledBecause) -> None:
    """Disable an endpoint and drop its messages."""
    await connection.execute("delete from webhook_messages where webhook_id = $1", webhook_id)
    await connection.execute(
        "update webhooks set disabled_at = clock_timestamp(), disabled_because = $2, dropped = dropped + waiting,"
        " waiting = 0, due_at = null where id = $1 and disabled_at is null",
        webhook_id,
        reason,
    )


async def _delete_messages(connection: Connection, ids: Sequence[int]) -> int:
    """Delete messages. Return how many existed, because another process may have delivered some after this turn timed
    out."""
    if not ids:
        return 0
    gone = await connection.fetch("delete from webhook_messages where id = any($1::bigint[]) returning id", list(ids))
    return len(gone)
