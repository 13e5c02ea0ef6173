"""Outlooks of polls, read for all waiting polls by one statement outside of a transaction."""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.api.book.leases_sql import PollKey
from coordinatord.storage.database.prepared import PreparedConnection
from coordinatord.storage.database.snapshot_sql import SNAPSHOT, Snapshot, snapshot_of


@attrs.frozen(slots=True)
class PollOutlook:
    """Summary of the jobs and offers that a poll can find.

    `some_open`: there are open jobs for the provider. `some_free`: some of them are not leased. `some_offered`: there
    are pending offers. `may_claim`: the provider may lease free jobs and take offers. `holds_some`: the provider has
    leases.
    """

    known_model: bool
    some_open: bool
    some_free: bool
    some_offered: bool
    may_claim: bool
    holds_some: bool


# `order by … limit 1` in place of `exists` has PostgreSQL read the index of open bids. The arrays are in subqueries, so
# that plans do not depend on their lengths: PostgreSQL would plan each read of a few pollers again, for milliseconds.
_OUTLOOK: Final = f"""
    with pollers as (
        select * from unnest((select $1::bigint[]), (select $2::bigint[])) as a(provider_id, model_id)),
    bids as materialized (
        select m.model_id,
            (select true from open_jobs j where j.model_id = m.model_id and j.designated = 0
                order by j.posted_block, j.posted_log limit 1) as some_open,
            (select true from open_jobs j where j.model_id = m.model_id and j.designated = 0 and j.is_free
                and not j.key_lost order by j.posted_block, j.posted_log limit 1) as some_free,
            exists (select from free_offers o where o.model_id = m.model_id and o.designated = 0) as some_offered
        from models m where m.model_id in (select model_id from pollers)),
    orders as materialized (
        select a.provider_id, a.model_id,
            exists (select from open_jobs j where j.designated = a.provider_id and j.designated > 0
                and j.model_id = a.model_id) as some_open,
            exists (select from free_offers o where o.designated = a.provider_id and o.designated > 0
                and o.model_id = a.model_id) as some_offered
        from pollers a),
    outlooks as materialized (
        select o.provider_id, o.model_id, b.model_id is not null as known_model,
            coalesce(b.some_open or o.some_open, false) as some_open,
            coalesce(b.some_free or o.some_open, false) as some_free,
            coalesce(b.some_offered or o.some_offered, false) as some_offered
        from orders o left join bids b on b.model_id = o.model_id)
    select o.provider_id, o.model_id, o.known_model, o.some_open, o.some_free, o.some_offered,
        (o.some_free or o.some_offered) and exists (
            select from claimers c where c.provider_id = o.provider_id and c.model_id = o.model_id
                and c.may_claim and c.room > 0) as may_claim,
        o.some_open and exists (
            select from leases l where l.provider_id = o.provider_id and l.model_id = o.model_id
                and l.expires_at > statement_timestamp()) as holds_some,
        {SNAPSHOT}
    from index_position p cross join outlooks o
"""


async def read_outlooks(
    line: PreparedConnection, pollers: Sequence[PollKey]
) -> tuple[Snapshot, dict[PollKey, PollOutlook]]:
    """Return the index snapshot, and the outlook of each poller's next poll."""
    rows = await line.fetch(
        _OUTLOOK, [poller.provider_id for poller in pollers], [poller.model_id for poller in pollers]
    )
    return snapshot_of(rows), {PollKey(row[0], row[1]): PollOutlook(*row[2:8]) for row in rows}
