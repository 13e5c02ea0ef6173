"""Who is there to take an order: live asks, ranked; and the polls that keep them live.

A provider is live for a model while its last poll is recent. Cost at ask decides; among equal costs, whoever was
picked least recently.
"""

from typing import Final

import attrs

from coordinatord.store.database import Connection, Database


@attrs.frozen(slots=True)
class Demand:
    """What is asked of the market. With rates, only asks that they clear; with `designated`, only that provider."""

    model_id: int
    sla_secs: int
    units_in: int
    units_out: int
    designated: int = 0
    rate_in: int | None = None
    rate_out: int | None = None


@attrs.frozen(slots=True)
class Candidate:
    provider_id: int
    box_key: bytes
    rate_in: str
    rate_out: str


_MOST: Final = 1000  # of one market probe; more live asks for one model and window than this are not listed


async def read_candidates(database: Database, demand: Demand, liveness_ms: int, most: int | None) -> list[Candidate]:
    """The cheapest first; all of them when `most` is None."""
    async with database.connection() as connection:
        rows = await connection.fetch(
            "select a.provider_id, v.box_key, a.rate_in::text, a.rate_out::text from asks a"
            " join providers v on v.provider_id = a.provider_id"
            " join liveness l on l.provider_id = a.provider_id and l.model_id = a.model_id"
            " where a.model_id = $1 and a.sla = $2 and v.listed and v.box_key is not null"
            " and l.seen_at > clock_timestamp() - $5 * interval '1 millisecond'"
            " and (v.allow_all_models or exists (select 1 from provider_models x"
            "  where x.provider_id = a.provider_id and x.model_id = a.model_id))"
            " and ($6::bigint = 0 or a.provider_id = $6)"
            " and ($7::numeric is null or a.rate_in <= $7) and ($8::numeric is null or a.rate_out <= $8)"
            " order by a.rate_in * $3::bigint + a.rate_out * $4::bigint, l.picked_at nulls first, a.provider_id"
            " limit $9",
            demand.model_id,
            demand.sla_secs,
            demand.units_in,
            demand.units_out,
            liveness_ms,
            demand.designated,
            demand.rate_in,
            demand.rate_out,
            most if most is not None else _MOST,
        )
    return [Candidate(*row) for row in rows]


async def mark_picked(database: Database, provider_id: int, model_id: int) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "update liveness set picked_at = clock_timestamp() where provider_id = $1 and model_id = $2",
            provider_id,
            model_id,
        )


async def mark_seen(connection: Connection, provider_id: int, model_id: int, free: int) -> None:
    await connection.execute(
        "insert into liveness (provider_id, model_id, free, seen_at) values ($1, $2, $3, clock_timestamp())"
        " on conflict (provider_id, model_id) do update set free = excluded.free, seen_at = excluded.seen_at",
        provider_id,
        model_id,
        free,
    )
