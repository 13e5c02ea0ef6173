"""Look up a job after an op that was refused or had no answer."""

from typing import Final, Literal

import attrs
import trio

from common.api.states import JobState
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator
from svcd.coordinator.outcomes import ChainRefused, OpOutcome
from svcd.journal.held_job import ClaimedJob

_LOOKUP_INTERVAL_S: Final = 2.0
Standing = Literal["open", "held", "settled", "ended", "unknown"]

_STANDINGS: Final[dict[JobState, Standing]] = {
    JobState.CLAIMED: "held",
    JobState.SETTLED: "settled",
    JobState.CANCELLED: "ended",
}
_INDEX_TIMEOUT_S: Final = 60.0


@attrs.frozen(slots=True)
class LookedUp:
    """Standing of a job, and the job with its current SLA window."""

    standing: Standing
    held: ClaimedJob


@attrs.frozen(slots=True, eq=False)
class Lookup:
    coordinator: Coordinator
    clock: Clock
    provider_id: int

    async def after(self, outcome: OpOutcome, held: ClaimedJob) -> LookedUp:
        """Return the job's standing after an op that was not confirmed.

        If the chain refused with `NotClaimed` but the index still shows the job as claimed, wait for the index to
        catch up. Otherwise a successful settle could be mistaken for a refused one.
        """
        until = trio.current_time() + _INDEX_TIMEOUT_S
        while True:
            found = await self.of(held)
            behind = isinstance(outcome, ChainRefused) and outcome.reason == "NotClaimed"
            if found.standing in ("open", "settled", "ended") or not behind or trio.current_time() >= until:
                return found
            await trio.sleep(_LOOKUP_INTERVAL_S)

    async def of(self, held: ClaimedJob) -> LookedUp:
        """Return the job's standing in the coordinator's index.

        `open` after a claim means that a reorg removed the claim. `unknown` means that the coordinator is unreachable
        or its index is behind.
        """
        try:
            job = await self.coordinator.job(held.job.job_id)
        except Unavailable:
            return LookedUp("unknown", held)
        if job is None:
            return LookedUp("unknown", held)
        if job.state == JobState.OPEN:
            # The next mined claim starts a new SLA window, even if it is the same claim mined again.
            return LookedUp("open", held.in_window_of(trio.current_time()) if held.was_claimed else held)
        if job.provider_id != self.provider_id:
            # The order expired or was cancelled. For a job that runs ahead, the claim's own outcome decides.
            is_over = job.state == JobState.CANCELLED and job.provider_id == 0
            return LookedUp("ended" if is_over and held.was_claimed else "unknown", held)
        # The claim may have been mined again in a later block.
        return LookedUp(_STANDINGS[job.state], held.in_window_of(self.clock.in_loop_time(job.claimed_at)))
