"""Candidates for an order: asks of live providers, ranked.

The cheapest ask ranks first. Equal prices rank by load in quarters of the capacity, then by the time of the last pick,
then by the share of claimed jobs that were settled. A provider without room takes no further order.
"""

from typing import Final

import attrs

from coordinatord.api.book.liveness_sql import LIVE_SINCE_SQL
from coordinatord.api.book.reliability_sql import RELIABILITY_COLUMNS, SETTLED_SHARE_SQL, ReliabilityRow
from coordinatord.storage.database.connections import Database

_MAX_PROBE_ASKS: Final = 1000


@attrs.frozen(slots=True)
class Demand:
    """Terms of an order or probe to find candidates for. With rates, only asks up to these rates are candidates. With a
    `designated` provider, only the asks of this provider are candidates."""

    model_id: int
    sla_secs: int
    units_in: int
    units_out: int
    designated: int = 0
    rate_in: int | None = None
    rate_out: int | None = None


@attrs.frozen(slots=True)
class LiveAsk:
    """Ask of a live provider. `room` is the number of further jobs of all models that the provider can take. `room` is
    negative while more orders are designated to the provider than it can take."""

    model_id: int
    provider_id: int
    box_key: bytes
    rate_in: str
    rate_out: str
    room: int
    reliability: ReliabilityRow


_COLUMNS: Final = (
    f"a.model_id, a.provider_id, v.box_key, a.rate_in::text, a.rate_out::text, w.room, {RELIABILITY_COLUMNS}"
)
# Asks `a` of live providers `v` that may claim jobs of the model (`c`). Orders designated to the provider take up room.
# `offset 0` makes PostgreSQL count these orders only once.
_FROM_LIVE_ASKS: Final = (
    "from asks a join providers v on v.provider_id = a.provider_id and v.box_key is not null"
    " join claimers c on c.provider_id = a.provider_id and c.model_id = a.model_id and c.may_claim"
    " join liveness l on l.provider_id = a.provider_id and l.model_id = a.model_id"
    f" and l.seen_at > {LIVE_SINCE_SQL}"
    " left join reliability r on r.provider_id = a.provider_id and r.model_id = a.model_id"
    " cross join lateral (select c.room - c.designated_jobs as room offset 0) w"
)
# Load in quarters of the capacity, so that a difference of one job does not outweigh the time of the last pick.
_TIE_BREAK_ORDER: Final = (
    f"div(4 * (c.capacity - w.room), c.capacity), l.picked_at nulls first, {SETTLED_SHARE_SQL} desc, a.provider_id"
)


async def read_candidates(database: Database, demand: Demand, liveness_ms: int, limit: int | None) -> list[LiveAsk]:
    """Return up to `limit` asks with room, cheapest first. Without a limit, return all asks, and asks without room
    last."""
    async with database.connection() as connection:
        rows = await connection.fetch(
            f"select {_COLUMNS} {_FROM_LIVE_ASKS.format('$5')} where a.model_id = $1 and a.sla = $2"
            " and ($6::bigint = 0 or a.provider_id = $6)"
            " and ($7::numeric is null or a.rate_in <= $7) and ($8::numeric is null or a.rate_out <= $8)"
            " and ($10 or w.room > 0)"
            f" order by w.room <= 0, a.rate_in * $3::numeric + a.rate_out * $4::numeric, {_TIE_BREAK_ORDER} limit $9",
            demand.model_id,
            demand.sla_secs,
            demand.units_in,
            demand.units_out,
            liveness_ms,
            demand.designated,
            demand.rate_in,
            demand.rate_out,
            limit if limit is not None else _MAX_PROBE_ASKS,
            limit is None,
        )
    return [LiveAsk(*[*row[:6], ReliabilityRow(*row[6:])]) for row in rows]
