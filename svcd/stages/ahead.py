"""Limit the jobs that run ahead: jobs that start before their post and claim are in a block.

    offer ─► claim stored (202) ─► opened, run, sealed ─► settle, sent after the claim
                    └─► claim mined: from now on a normal claimed job
                    └─► claim refused: the work stops, unpaid

The provider loses the work if the payment fails before the claim is mined. The limits in `[model.ahead]` bound this
loss. An owner's limit is 0 until `settled_jobs` of the owner's jobs have settled. After an unpaid job, the limit is 0
again until as many more jobs have settled.
"""

from collections import Counter
from collections.abc import Mapping

import attrs

from common import quotes
from svcd.base import metrics
from svcd.config import AheadTable
from svcd.journal.entries import OwnerRecord
from svcd.journal.held_job import PendingClaim
from svcd.journal.journal import Journal
from svcd.stages.offers import Offer


def max_amount_for(owner: OwnerRecord, table: AheadTable) -> int:
    """Return the highest amount of a job that may run ahead for this owner.

    The amount is 0 until `settled_jobs` jobs have settled, and after an unpaid job until as many more have settled.
    Each unpaid job also halves the amount, and every `settled_jobs` jobs that settle afterwards double it again.
    """
    if owner.settled_jobs < table.settled_jobs or (
        owner.unpaid_jobs and owner.settled_jobs_since_unpaid < table.settled_jobs
    ):
        return 0
    return table.max_amount >> max(0, owner.unpaid_jobs - owner.settled_jobs_since_unpaid // table.settled_jobs)


@attrs.define(slots=True, eq=False)
class AheadLimits:
    """Limits on the amounts of jobs that run ahead of their claims. `table_by_model` has the configured limits by
    model."""

    table_by_model: Mapping[str, AheadTable]
    journal: Journal
    _in_flight: Counter[str] = attrs.field(factory=Counter)

    async def permit(self, offer: Offer) -> PendingClaim | None:
        """Return a `PendingClaim` if the job may run ahead, or None if the job must wait for its claim.

        Open bids always wait, because the escrow releases their keys only for a claim on the chain.
        """
        table, job = self.table_by_model.get(offer.model), offer.job
        if table is None or not offer.is_pending or job.designated == 0:
            return None
        stake = quotes.cap(job.rate_in, job.rate_out, job.units_in, job.units_out)
        if stake > max_amount_for(await self.journal.read_owner_record(job.owner), table):
            return None
        if self._in_flight[offer.model] + stake > table.max_in_flight:
            return None
        self._in_flight[offer.model] += stake
        metrics.jobs_ahead.labels("begun").inc()

        def release_stake() -> None:
            self._in_flight[offer.model] -= stake

        return PendingClaim(stake, release_stake)
