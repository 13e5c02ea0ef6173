"""Reliability of providers: how the jobs that they claimed ended in the last seven days, by model and over all models.

The janitor recounts the table from an index of ended jobs, so the table needs no undo after a reorg. Counting a million
ended jobs takes seconds. The pause before the next count is many times as long as the count.
"""

import time
from collections.abc import Callable
from typing import Final

import attrs

from common.api.limits import RELIABILITY_PERIOD_S
from common.api.states import EndedBecause
from coordinatord.storage.database.connections import Connection

ALL_MODELS: Final = -1
_PAUSE_TO_COUNT_RATIO: Final = 30  # so that counting uses one thirtieth of one connection's time


@attrs.frozen(slots=True)
class ReliabilityRow:
    """Numbers of ended jobs. `median_secs` is the median time from claim to settle, or None if no job settled.

    `units_per_sec` is the output rate over all settled jobs, or None if no unit was charged.
    """

    settled: int
    failed: int
    reclaimed: int
    median_secs: int | None
    units_per_sec: int | None


# Columns of a ReliabilityRow, from the row `r` of the table. The row may be missing.
RELIABILITY_COLUMNS: Final = (
    "coalesce(r.settled, 0) as settled, coalesce(r.failed, 0) as failed, coalesce(r.reclaimed, 0) as reclaimed,"
    " r.median_secs, r.units_per_sec"
)
# Share of claimed jobs that were settled. One settled and one lost job are added for every provider, so that a single
# job does not rank a provider first, and new providers rank between reliable and unreliable ones.
SETTLED_SHARE_SQL: Final = (
    "(coalesce(r.settled, 0) + 1)::float8"
    " / (coalesce(r.settled, 0) + coalesce(r.failed, 0) + coalesce(r.reclaimed, 0) + 2)"
)

_RECOUNT_RELIABILITY: Final = (
    "with ended as (select j.provider_id, j.model_id, j.ended_because, greatest(j.ended_at - j.claimed_at, 0) as secs,"
    " count(*) as jobs, sum(j.completion_tok) as units from jobs j, index_position p"
    " where j.ended_at > p.block_time - $1::bigint and j.ended_at is not null and j.provider_id > 0"
    " group by j.provider_id, j.model_id, j.ended_because, j.ended_at - j.claimed_at),"
    " each as (select * from ended union all"
    f" select provider_id, {ALL_MODELS}, ended_because, secs, sum(jobs), sum(units) from ended"
    " group by provider_id, ended_because, secs),"
    " running as (select provider_id, model_id, secs,"
    " sum(jobs) over (partition by provider_id, model_id order by secs) as upto,"
    " sum(jobs) over (partition by provider_id, model_id) as total"
    f" from each where ended_because = {EndedBecause.SETTLE}),"
    " medians as (select provider_id, model_id, min(secs) as secs from running where 2 * upto >= total"
    " group by provider_id, model_id),"
    " sums as materialized (select e.provider_id, e.model_id,"
    f" coalesce(sum(e.jobs) filter (where e.ended_because = {EndedBecause.SETTLE}), 0)::bigint as settled,"
    f" coalesce(sum(e.jobs) filter (where e.ended_because = {EndedBecause.PROVIDER_FAIL}), 0)::bigint as failed,"
    f" coalesce(sum(e.jobs) filter (where e.ended_because = {EndedBecause.RECLAIM}), 0)::bigint as reclaimed,"
    " min(m.secs) as median_secs,"
    f" nullif(ceil(sum(e.units) filter (where e.ended_because = {EndedBecause.SETTLE})"
    f" / greatest(sum(e.secs * e.jobs) filter (where e.ended_because = {EndedBecause.SETTLE}), 1)), 0)::bigint"
    " as units_per_sec from each e left join medians m using (provider_id, model_id)"
    " group by e.provider_id, e.model_id),"
    " gone as (delete from reliability r where not exists (select 1 from sums s"
    " where s.provider_id = r.provider_id and s.model_id = r.model_id))"
    " insert into reliability as r (provider_id, model_id, settled, failed, reclaimed, median_secs, units_per_sec)"
    " select * from sums on conflict (provider_id, model_id) do update set settled = excluded.settled,"
    " failed = excluded.failed, reclaimed = excluded.reclaimed, median_secs = excluded.median_secs,"
    " units_per_sec = excluded.units_per_sec"
    " where (r.settled, r.failed, r.reclaimed, r.median_secs, r.units_per_sec) is distinct from"
    " (excluded.settled, excluded.failed, excluded.reclaimed, excluded.median_secs, excluded.units_per_sec)"
)


@attrs.define(slots=True)
class ReliabilityCounter:
    """Recounts the table `reliability`. The janitor calls `refresh` at each sweep."""

    clock: Callable[[], float] = time.monotonic
    _next_count_at: float = attrs.field(default=0.0, init=False)

    async def refresh(self, connection: Connection) -> None:
        """Recount the table if a count is due."""
        began = self.clock()
        if began < self._next_count_at:
            return
        await connection.execute(_RECOUNT_RELIABILITY, RELIABILITY_PERIOD_S)
        self._next_count_at = self.clock() + _PAUSE_TO_COUNT_RATIO * (self.clock() - began)
