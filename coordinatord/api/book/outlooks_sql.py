"""Outlooks of polls: which jobs and offers a poll could find. One statement reads the outlooks of many polls."""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.api.book.leases_sql import PollKey
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT_COLUMNS, Snapshot, snapshot_from_rows


@attrs.frozen(slots=True)
class PollOutlook:
    """Summary of the jobs and offers that a poll can find.

    `has_open_jobs`: there are open jobs for the provider. `has_free_jobs`: some of these jobs are not leased.
    `has_offers`: there are pending offers. `may_claim`: the provider may lease free jobs and take offers. `has_leases`:
    the provider has leases.
    """

    known_model: bool
    has_open_jobs: bool
    has_free_jobs: bool
    has_offers: bool
    may_claim: bool
    has_leases: bool


# `order by … limit 1` in place of `exists` makes PostgreSQL read the index of open jobs that any provider may claim.
# The arrays are in subqueries, so that plans do not depend on their lengths. Otherwise PostgreSQL would plan each read
# of a few pollers again, which takes milliseconds.
_SELECT_OUTLOOKS: Final = f"""
    with pollers as (
        select * from unnest((select $1::bigint[]), (select $2::bigint[])) as a(provider_id, model_id)),
    bids as materialized (
        select m.model_id,
            (select true from open_jobs j where j.model_id = m.model_id and j.designated = 0
                order by j.posted_block, j.posted_log limit 1) as has_open_jobs,
            (select true from open_jobs j where j.model_id = m.model_id and j.designated = 0 and j.is_free
                and not j.key_lost order by j.posted_block, j.posted_log limit 1) as has_free_jobs,
            exists (select from free_offers o where o.model_id = m.model_id and o.designated = 0) as has_offers
        from models m where m.model_id in (select model_id from pollers)),
    orders as materialized (
        select a.provider_id, a.model_id,
            exists (select from open_jobs j where j.designated = a.provider_id and j.designated > 0
                and j.model_id = a.model_id) as has_open_jobs,
            exists (select from free_offers o where o.designated = a.provider_id and o.designated > 0
                and o.model_id = a.model_id) as has_offers
        from pollers a),
    outlooks as materialized (
        select o.provider_id, o.model_id, b.model_id is not null as known_model,
            coalesce(b.has_open_jobs or o.has_open_jobs, false) as has_open_jobs,
            coalesce(b.has_free_jobs or o.has_open_jobs, false) as has_free_jobs,
            coalesce(b.has_offers or o.has_offers, false) as has_offers
        from orders o left join bids b on b.model_id = o.model_id)
    select o.provider_id, o.model_id, o.known_model, o.has_open_jobs, o.has_free_jobs, o.has_offers,
        (o.has_free_jobs or o.has_offers) and exists (
            select from claimers c where c.provider_id = o.provider_id and c.model_id = o.model_id
                and c.may_claim and c.room > 0) as may_claim,
        o.has_open_jobs and exists (
            select from leases l where l.provider_id = o.provider_id and l.model_id = o.model_id
                and l.expires_at > statement_timestamp()) as has_leases,
        {SNAPSHOT_COLUMNS}
    from index_position p cross join outlooks o
"""


async def read_outlooks(
    connection: PreparedConnection, pollers: Sequence[PollKey]
) -> tuple[Snapshot, dict[PollKey, PollOutlook]]:
    """Return the index snapshot, and the outlook of each poller's next poll."""
    rows = await connection.fetch(
        _SELECT_OUTLOOKS, [poller.provider_id for poller in pollers], [poller.model_id for poller in pollers]
    )
    return snapshot_from_rows(rows), {PollKey(row[0], row[1]): PollOutlook(*row[2:8]) for row in rows}
