"""Limits for running a job ahead: before its post and claim are in a block.

    offer ─► claim stored (202) ─► opened, run, sealed ─► settle, sent after the claim
                    └─► claim mined: a claimed job like any other
                    └─► claim refused: the work stops, unpaid

The provider loses the work if the payment fails before the claim is mined. The model's table bounds this loss. Each
unpaid job halves its owner's limit, and suspends it until `settled_jobs` more of the owner's jobs are settled.
"""

from collections import Counter
from collections.abc import Mapping

import attrs

from common import quotes
from svcd.base import metrics
from svcd.config import AheadTable
from svcd.journal.entries import OwnerRecord
from svcd.journal.held_job import Ahead
from svcd.journal.journal import Journal
from svcd.stages.offers import Offer


def max_amount_for(owner: OwnerRecord, table: AheadTable) -> int:
    """Return the largest amount that is run ahead for the owner.

    Each unpaid job halves the amount. Every `settled_jobs` jobs settled since then double it again.
    """
    if owner.settled < table.settled_jobs or (owner.unpaid and owner.settled_since < table.settled_jobs):
        return 0
    return table.max_amount >> max(0, owner.unpaid - owner.settled_since // table.settled_jobs)


@attrs.define(slots=True, eq=False)
class AheadLimits:
    """Limit the amount of jobs that run ahead of their claims. `tables` has the limits of each model that may."""

    tables: Mapping[str, AheadTable]
    journal: Journal
    _in_flight: Counter[str] = attrs.field(factory=Counter)

    async def permit(self, offer: Offer) -> Ahead | None:
        """Return a permit to run the job ahead, or None if the job must wait for its claim.

        Open bids always wait: the escrow releases their keys only for a claim on the chain.
        """
        table, job = self.tables.get(offer.model), offer.job
        if table is None or not offer.pending or job.designated == 0:
            return None
        stake = quotes.cap(job.rate_in, job.rate_out, job.units_in, job.units_out)
        if stake > max_amount_for(await self.journal.owner(job.owner), table):
            return None
        if self._in_flight[offer.model] + stake > table.max_in_flight:
            return None
        self._in_flight[offer.model] += stake
        metrics.jobs_ahead.labels("begun").inc()

        def release_stake() -> None:
            self._in_flight[offer.model] -= stake

        return Ahead(stake, release_stake)
