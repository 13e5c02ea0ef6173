"""Store trace contexts of relays, so that other processes can add spans to a request's trace.

Callers store a context only if tracing is on and the request's trace is sampled.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection
from coordinatord.storage.database.removal_sql import remove_due

# Jobs end within two days of their order.
_RETENTION: Final = "interval '2 days'"
_POST_KIND: Final = "post"


async def store_trace(connection: Connection, relay_id: int, kind: str, subject: bytes, traceparent: str) -> None:
    await connection.execute(
        "insert into relay_traces (relay_id, kind, subject, traceparent) values ($1, $2, $3, $4)"
        " on conflict do nothing",
        relay_id,
        kind,
        subject,
        traceparent,
    )


async def read_contexts_of_orders(connection: Connection, job_ids: Sequence[bytes]) -> dict[bytes, str]:
    """Return the contexts of these jobs' orders, by job."""
    rows = await connection.fetch(
        "select subject, traceparent from relay_traces where subject = any($1::bytea[]) and kind = $2"
        " order by relay_id",
        job_ids,
        _POST_KIND,
    )
    return {row["subject"]: row["traceparent"] for row in rows}


async def read_contexts_of_ops(connection: Connection, ops: Iterable[tuple[str, bytes]], limit: int) -> list[str]:
    """Return the contexts of ops, each given by its kind and job."""
    pairs = list(ops)
    rows = await connection.fetch(
        "select t.traceparent from unnest($1::text[], $2::bytea[]) as o(kind, job_id)"
        " join relay_traces t on t.subject = o.job_id and t.kind = o.kind order by t.relay_id limit $3",
        [kind for kind, _ in pairs],
        [job_id for _, job_id in pairs],
        limit,
    )
    return [row["traceparent"] for row in rows]


@attrs.frozen(slots=True)
class TracedRelay:
    """Signed relay with the context of its request. Times are in Unix seconds. `signed_at` is the time of the relay's
    transaction."""

    traceparent: str
    kind: str
    state: str
    tx_id: int
    stored_at: float
    signed_at: float


async def read_traced_relays(connection: Connection, tx_ids: Sequence[int]) -> list[TracedRelay]:
    """Return the traced relays that these transactions carry."""
    rows = await connection.fetch(
        "select c.traceparent, r.kind, r.state::text, r.tx_id, extract(epoch from r.created_at)::float8,"
        " extract(epoch from t.created_at)::float8"
        " from relays r join relay_traces c on c.relay_id = r.id join relay_txs t on t.id = r.tx_id"
        " where r.tx_id = any($1::bigint[]) order by r.id",
        tx_ids,
    )
    return [TracedRelay(*row) for row in rows]


async def drop_old_traces(connection: Connection) -> None:
    # A literal, because with a parameter the planner would expect a third of the rows to be due.
    await remove_due(connection, "relay_traces", f"kept_at < statement_timestamp() - {_RETENTION}")
