"""Webhook endpoints in the database, for their owners."""

from datetime import datetime
from typing import Final, Literal

import asyncpg
import attrs

from coordinatord.base import metrics
from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

DisabledBecause = Literal["gone", "failing"]

_UNUSED_RETENTION: Final = "interval '7 days'"  # of endpoints that never accepted a message
_DISABLED_RETENTION: Final = "interval '30 days'"


@attrs.frozen(slots=True)
class Endpoint:
    id: str
    url: str
    wanted: list[str]
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


async def insert_endpoint(
    connection: Connection,
    webhook_id: str,
    owner: bytes,
    *,
    url: str,
    wanted: list[str],
    secret: bytes,
    max_endpoints: int,
) -> Endpoint | None:
    """Add an endpoint with its sealed secret, in a transaction that may be retried. Return None if the owner has
    `max_endpoints` endpoints."""
    await connection.execute(
        "select pg_advisory_xact_lock(hashtextextended('webhooks ' || encode($1, 'hex'), 0))", owner
    )
    row = await connection.fetchrow(
        "insert into webhooks (id, owner, url, wanted, secret) select $1, $2, $3, $4, $5"
        " where (select count(*) from webhooks where owner = $2 and id <> $1) < $6"
        f" on conflict (id) do update set url = excluded.url returning {_COLUMNS}",
        webhook_id,
        owner,
        url,
        wanted,
        secret,
        max_endpoints,
    )
    return _endpoint_from_row(row) if row is not None else None


async def list_endpoints(connection: Connection, owner: bytes) -> list[Endpoint]:
    rows = await connection.fetch(f"select {_COLUMNS} from webhooks where owner = $1 order by place", owner)
    return [_endpoint_from_row(row) for row in rows]


async def delete_endpoint(connection: Connection, webhook_id: str, owner: bytes) -> bool:
    """Remove an endpoint with its messages. Return False when the owner has no such endpoint."""
    found = await connection.fetchval(
        "delete from webhooks where id = $1 and owner = $2 returning true", webhook_id, owner
    )
    return found is True


async def lock_endpoint(connection: Connection, webhook_id: str, owner: bytes) -> tuple[Endpoint, bool] | None:
    """Lock an endpoint. Return the endpoint, and True if a test message waits for it."""
    row = await connection.fetchrow(
        f"select {_COLUMNS}, exists (select from webhook_messages m where m.webhook_id = w.id"
        " and m.type = 'webhook.test') as tested from webhooks w where id = $1 and owner = $2 for update",
        webhook_id,
        owner,
    )
    return (_endpoint_from_row(row), row["tested"]) if row is not None else None


async def delete_old_endpoints(connection: Connection) -> None:
    """Delete endpoints that had no success within their first week, or were disabled more than 30 days ago."""
    await remove_due(connection, "webhooks", f"delivered = 0 and created_at < clock_timestamp() - {_UNUSED_RETENTION}")
    await remove_due(connection, "webhooks", f"disabled_at < clock_timestamp() - {_DISABLED_RETENTION}")


async def update_lateness_metric(connection: Connection) -> None:
    """Set the metric of how long the oldest due message of a quick endpoint, or the oldest event, has waited."""
    late = await connection.fetchval(
        "select greatest(0, extract(epoch from clock_timestamp() - min(turn_at) filter (where quick))::float8,"
        " (select extract(epoch from clock_timestamp() - happened)::float8 from events"
        " where id > (select event_id from webhook_position) order by id limit 1)) from webhooks"
    )
    metrics.webhook_late.set(late)


def _endpoint_from_row(row: asyncpg.Record) -> Endpoint:
    """Return the endpoint of a record that starts with _COLUMNS."""
    return Endpoint(*row[: len(attrs.fields(Endpoint))])
