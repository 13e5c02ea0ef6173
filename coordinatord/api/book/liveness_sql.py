"""Last polls of providers by model. A provider is live for a model while its last poll is recent."""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.prepared import PreparedConnection

LIVE_SINCE_SQL: Final = "clock_timestamp() - {} * interval '1 millisecond'"


@attrs.frozen(slots=True)
class SeenPoll:
    """Poll of a provider for a model. `free_slots` is the number of free slots, and `polled_at` the time of the poll by
    this process's clock."""

    provider_id: int
    model_id: int
    free_slots: int
    polled_at: float = 0.0


async def store_polls(
    connection: "PreparedConnection | Connection", polls: Sequence[SeenPoll], ages: Sequence[float]
) -> None:
    """Store polls. `ages` has the seconds since each poll arrived. Of several polls of a provider for a model, store
    the latest time and the largest number of free slots."""
    await connection.fetch(
        "insert into liveness (provider_id, model_id, free, seen_at)"
        " select provider_id, model_id, max(free), clock_timestamp() - min(age) * interval '1 second'"
        " from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::float8[]) as s(provider_id, model_id, free, age)"
        " group by provider_id, model_id order by provider_id, model_id"
        " on conflict (provider_id, model_id) do update set free = excluded.free,"
        " seen_at = greatest(liveness.seen_at, excluded.seen_at)",
        [poll.provider_id for poll in polls],
        [poll.model_id for poll in polls],
        [poll.free_slots for poll in polls],
        ages,
    )


async def record_pick(database: Database, provider_id: int, model_id: int) -> None:
    """Record that an order was designated to the provider."""
    async with database.connection() as connection:
        await connection.execute(
            "update liveness set picked_at = clock_timestamp() where provider_id = $1 and model_id = $2",
            provider_id,
            model_id,
        )


async def delete_old_polls(connection: Connection) -> None:
    """Delete polls that are older than a day. A provider that returns later ranks like a new provider."""
    await connection.execute("delete from liveness where seen_at < clock_timestamp() - interval '1 day'")
