"""Check an ended tab: compare its transcript and charge with the units that this client acknowledged."""

from typing import Final

import attrs

from common.domains import Domains
from common.quotes import CostParts
from svc.core.tabs import OwnerTab, check_tab_result
from svc.errors import SvcError, TabFaulty
from svc.records import CODE_BY_ENDED_BECAUSE, Job
from svc.results import Results, cost_parts_of
from svc.tabs.files import StoredTab, TabFiles, faulty_provider_key

_COMPLETED_STATUS: Final = "completed"


@attrs.frozen(slots=True)
class TabOutcome:
    """End of a tab. Amounts are in base units.

    `charged`: units that the settle charged. `acknowledged`: units that this client acknowledged. `fault`: problem
    with the settle or its transcript, or None. `closed`: the provider's reason for closing the tab, or how a job
    without a settle ended. `returned`: the refunded amount.
    """

    job: Job
    closed: str
    requests: int
    charged: int
    acknowledged: int
    cost_parts: CostParts | None
    returned: int
    fault: str | None = None

    @property
    def cost(self) -> int:
        return 0 if self.cost_parts is None else self.cost_parts.total


@attrs.frozen
class TabChecker:
    """Checks tabs that have ended."""

    results: Results
    files: TabFiles
    domains: Domains

    async def check(self, job: Job, stored: StoredTab, owner_tab: OwnerTab) -> TabOutcome:
        """Return the outcome of an ended tab, and remove its file.

        Raises TabFaulty (`overcharged`) after recording the provider as faulty. Raises ResultUnreadable if the
        transcript cannot be read now; the tab's file is then kept.
        """
        file = stored.file
        if job.status != _COMPLETED_STATUS or job.result_cid is None:
            stored.remove()
            because = CODE_BY_ENDED_BECAUSE.get(job.svc.ended_because, job.status)
            return TabOutcome(job, because, 0, 0, owner_tab.acknowledged, None, file.amount)
        order = file.order(job.svc.completion_tok)
        try:
            output = (await self.results.read(job.id, job.result_cid)).output
        except SvcError:
            if order.completion_tok <= owner_tab.acknowledged:
                raise
            output = None  # the overcharge is proved without the transcript
        verdict = check_tab_result(output, order, owner_tab.acknowledged, file.delegation.voucher_key, self.domains)
        parts = cost_parts_of(job, file.fee_terms)
        returned = file.amount - (0 if parts is None else parts.total)
        transcript = verdict.transcript
        closed, requests = (
            ("unknown", 0) if transcript is None else (transcript.closing_reason, len(transcript.exchanges))
        )
        outcome = TabOutcome(
            job, closed, requests, order.completion_tok, owner_tab.acknowledged, parts, returned, verdict.fault
        )
        if verdict.fault is not None:
            self.files.add_faulty_provider(faulty_provider_key(file), f"job {job.id}: {verdict.fault}")
        stored.remove()
        if verdict.overcharged:
            text = f"provider {file.provider} overcharged: {verdict.fault}; this client opens no more tabs with it"
            raise TabFaulty(
                job.id, "overcharged", f"{text}. Prove the overcharge with svc receipt {job.id} --transcript"
            )
        return outcome
