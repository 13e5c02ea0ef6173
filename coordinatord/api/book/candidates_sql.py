"""Candidates for an order: live asks, ranked; and the polls that keep them live.

A provider is live for a model while its last poll is recent. The cheapest ask ranks first. Equal prices rank by load
in quarters of the capacity, then by the time of the last pick, then by the share of claimed jobs that were settled. A
provider without room takes no further job: the view `provider_rooms` counts what it holds.
"""

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from coordinatord.api.book.reliability_sql import RELIABILITY_COLUMNS, SCORE, ReliabilityRow
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.prepared import PreparedConnection


@attrs.frozen(slots=True)
class Demand:
    """A question to the market. With rates, only asks that they clear; with `designated`, only that provider."""

    model_id: int
    sla_secs: int
    units_in: int
    units_out: int
    designated: int = 0
    rate_in: int | None = None
    rate_out: int | None = None


@attrs.frozen(slots=True)
class LiveAsk:
    provider_id: int
    box_key: bytes
    rate_in: str
    rate_out: str
    room: int  # over all models; below 0 where more was ordered of it than it may hold
    reliability: ReliabilityRow


@attrs.frozen(slots=True)
class Taker:
    """A live provider with an ask, and how many jobs it could take now."""

    model_id: int
    provider_id: int
    box_key: bytes
    rate_in: str
    rate_out: str
    room: int  # over all models


# Conditions that `why_sql` tells apart: since when a poll counts, and which provider may run which model.
LIVE_SINCE: Final = "clock_timestamp() - {} * interval '1 millisecond'"
MAY_RUN: Final = (
    "(v.allow_all_models or exists (select 1 from provider_models x"
    " where x.provider_id = {provider} and x.model_id = {model}))"
)
# Of an ask `a`, its provider `v` and its polls `l`: the provider may be handed jobs of the model, and is there.
_LIVE: Final = (
    "from asks a join providers v on v.provider_id = a.provider_id"
    " join liveness l on l.provider_id = a.provider_id and l.model_id = a.model_id"
    " left join reliability r on r.provider_id = a.provider_id and r.model_id = a.model_id"
    # `offset 0` keeps the planner from counting once for each mention of the room.
    " cross join lateral (select * from provider_rooms where provider_id = a.provider_id offset 0) w"
    f" where v.listed and v.box_key is not null and l.seen_at > {LIVE_SINCE}"
    f" and {MAY_RUN.format(provider='a.provider_id', model='a.model_id')}"
)
# Of equal prices: the provider with the fewest quarters of its capacity in use, then the least recently picked one, as
# the specification has it. Quarters keep a difference of one job from deciding instead of the turn.
_TIE_BREAK: Final = f"div(4 * (w.capacity - w.room), w.capacity), l.picked_at nulls first, {SCORE} desc, a.provider_id"
_MOST: Final = 1000  # of one market probe; more live asks for one model and window than this are not listed


async def read_candidates(database: Database, demand: Demand, liveness_ms: int, most: int | None) -> list[LiveAsk]:
    """Return the cheapest first: `most` of those with room, or every live ask, those without room last."""
    async with database.connection() as connection:
        rows = await connection.fetch(
            "select a.provider_id, v.box_key, a.rate_in::text, a.rate_out::text, w.room,"
            f" {RELIABILITY_COLUMNS} {_LIVE.format('$5')}"
            " and a.model_id = $1 and a.sla = $2"
            " and ($6::bigint = 0 or a.provider_id = $6)"
            " and ($7::numeric is null or a.rate_in <= $7) and ($8::numeric is null or a.rate_out <= $8)"
            " and ($10 or w.room > 0)"
            f" order by w.room <= 0, a.rate_in * $3::bigint + a.rate_out * $4::bigint, {_TIE_BREAK} limit $9",
            demand.model_id,
            demand.sla_secs,
            demand.units_in,
            demand.units_out,
            liveness_ms,
            demand.designated,
            demand.rate_in,
            demand.rate_out,
            most if most is not None else _MOST,
            most is None,
        )
    return [LiveAsk(*[*row[:5], ReliabilityRow(*row[5:])]) for row in rows]


async def read_takers(database: Database, models: Collection[int], sla_secs: int, liveness_ms: int) -> list[Taker]:
    """Return live asks with room of these models for one window, in the order in which equal prices take turns."""
    async with database.connection() as connection:
        rows = await connection.fetch(
            "select a.model_id, a.provider_id, v.box_key, a.rate_in::text, a.rate_out::text, w.room"
            f" {_LIVE.format('$3')} and a.model_id = any($1) and a.sla = $2 and w.room > 0 order by {_TIE_BREAK}",
            list(models),
            sla_secs,
            liveness_ms,
        )
    return [Taker(*row) for row in rows]


async def mark_picked(database: Database, provider_id: int, model_id: int) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "update liveness set picked_at = clock_timestamp() where provider_id = $1 and model_id = $2",
            provider_id,
            model_id,
        )


@attrs.frozen(slots=True)
class Seen:
    """One poll: who is there for which model, with how many free slots, and when by the clock of this process."""

    provider_id: int
    model_id: int
    free: int
    at: float = 0.0


async def mark_seen(line: "PreparedConnection | Connection", polls: Sequence[Seen], ages: Sequence[float]) -> None:
    """Write polls of `ages` seconds ago. Of several for one provider and model, the one with the most free slots
    counts."""
    await line.fetch(
        "insert into liveness (provider_id, model_id, free, seen_at)"
        " select provider_id, model_id, max(free), clock_timestamp() - min(age) * interval '1 second'"
        " from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::float8[]) as s(provider_id, model_id, free, age)"
        " group by provider_id, model_id order by provider_id, model_id"
        " on conflict (provider_id, model_id) do update set free = excluded.free,"
        " seen_at = greatest(liveness.seen_at, excluded.seen_at)",
        [poll.provider_id for poll in polls],
        [poll.model_id for poll in polls],
        [poll.free for poll in polls],
        ages,
    )


async def drop_gone(connection: Connection) -> None:
    """Drop providers' polls of long ago: who comes back is among the first again, as one who has waited long."""
    await connection.execute("delete from liveness where seen_at < clock_timestamp() - interval '1 day'")
