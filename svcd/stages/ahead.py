"""Running ahead, by the provider's choice: a job is run while its post and claim are on their way to a block.

    offer ─► claim stored (202) ─► opened, run, sealed ─► settle, behind the claim
                    └─► the claim's end ─► in a block: a claimed job like any other
                                       └─► refused: the work stops, unpaid

What can be lost is the work on jobs whose payment fails in between. It is bounded by the model's table, and an owner
that lets it happen has its limit halved, and none at all before as many of its jobs were settled as the table asks.
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


def most_for(owner: OwnerRecord, table: AheadTable) -> int:
    """The largest job that is run ahead for the owner: half as large for each that was not paid, and twice for each
    `settled_jobs` that were settled since."""
    if owner.settled < table.settled_jobs or (owner.unpaid and owner.settled_since < table.settled_jobs):
        return 0
    return table.most_amount >> max(0, owner.unpaid - owner.settled_since // table.settled_jobs)


@attrs.define(slots=True, eq=False)
class AheadLimits:
    """`tables`: of the models that run ahead."""

    tables: Mapping[str, AheadTable]
    journal: Journal
    _in_flight: Counter[str] = attrs.field(factory=Counter)

    async def permit(self, offer: Offer) -> Ahead | None:
        """None for a job that waits for its claim, as most do: open bids in any case, whose keys the escrow gives out
        to who claimed them on the chain."""
        table, job = self.tables.get(offer.model), offer.job
        if table is None or not offer.pending or job.designated == 0:
            return None
        stake = quotes.cap(job.rate_in, job.rate_out, job.units_in, job.units_out)
        if stake > most_for(await self.journal.owner(job.owner), table):
            return None
        if self._in_flight[offer.model] + stake > table.most_in_flight:
            return None
        self._in_flight[offer.model] += stake
        metrics.jobs_ahead.labels("begun").inc()

        def over() -> None:
            self._in_flight[offer.model] -= stake

        return Ahead(stake, over)
