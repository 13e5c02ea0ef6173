"""Look up a job in the coordinator's index after an op that was refused or had no response."""

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
IndexedState = Literal["open", "held", "settled", "ended", "unknown"]

_INDEXED_STATES: Final[dict[JobState, IndexedState]] = {
    JobState.CLAIMED: "held",
    JobState.SETTLED: "settled",
    JobState.CANCELLED: "ended",
}
_INDEX_TIMEOUT_S: Final = 60.0


@attrs.frozen(slots=True)
class LookupResult:
    """State of a job in the index, and the job with its current window."""

    state: IndexedState
    claimed_job: ClaimedJob


@attrs.frozen(slots=True, eq=False)
class JobLookup:
    coordinator: Coordinator
    clock: Clock
    provider_id: int

    async def look_up_after(self, outcome: OpOutcome, held: ClaimedJob) -> LookupResult:
        """Return the job's state after an op that was not confirmed.

        If the chain returned `NotClaimed` but the index still shows the job as claimed, wait until the index has caught
        up. Otherwise a successful settle could be mistaken for a refused settle.
        """
        until = trio.current_time() + _INDEX_TIMEOUT_S
        while True:
            found = await self.look_up(held)
            is_behind = isinstance(outcome, ChainRefused) and outcome.reason == "NotClaimed"
            if found.state in ("open", "settled", "ended") or not is_behind or trio.current_time() >= until:
                return found
            await trio.sleep(_LOOKUP_INTERVAL_S)

    async def look_up(self, held: ClaimedJob) -> LookupResult:
        """Return the job's current state in the coordinator's index.

        `open` after a claim means that a reorg removed the claim. `unknown` means that the coordinator is unreachable
        or its index is behind.
        """
        try:
            job = await self.coordinator.read_job(held.job.job_id)
        except Unavailable:
            return LookupResult("unknown", held)
        if job is None:
            return LookupResult("unknown", held)
        if job.state == JobState.OPEN:
            # The next mined claim starts a new window, even if the same claim is mined again.
            return LookupResult("open", held.with_window_from(trio.current_time()) if held.was_claimed else held)
        if job.provider_id != self.provider_id:
            # A cancelled job without a provider is over. For a job that runs ahead, wait for the claim's outcome.
            is_over = job.state == JobState.CANCELLED and job.provider_id == 0
            return LookupResult("ended" if is_over and held.was_claimed else "unknown", held)
        # The claim may have been mined again in a later block.
        return LookupResult(_INDEXED_STATES[job.state], held.with_window_from(self.clock.to_loop_time(job.claimed_at)))
