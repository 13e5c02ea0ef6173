"""Lookup of an op whose answer was lost or rejected: ask the chain, assume nothing."""

from typing import Final, Literal

import attrs
import trio

from common.api.states import JobState
from svcd.base.clock import Clock
from svcd.base.errors import Unavailable
from svcd.coordinator.client import Coordinator
from svcd.coordinator.outcomes import ChainRefused, OpOutcome
from svcd.journal.held_job import ClaimedJob

_LOOK_AGAIN: Final = 2.0
Standing = Literal["open", "held", "settled", "ended", "unknown"]

_STANDINGS: Final[dict[JobState, Standing]] = {
    JobState.CLAIMED: "held",
    JobState.SETTLED: "settled",
    JobState.CANCELLED: "ended",
}
_INDEX_PATIENCE: Final = 60.0


@attrs.frozen(slots=True)
class LookedUp:
    """Where a job stands, and the job with the window that it has now."""

    standing: Standing
    held: ClaimedJob


@attrs.frozen(slots=True, eq=False)
class Lookup:
    coordinator: Coordinator
    clock: Clock
    provider_id: int

    async def after(self, outcome: OpOutcome, held: ClaimedJob) -> LookedUp:
        """Where the job stands after an op that was not confirmed. When the chain says that it is no longer claimed,
        an index that says it is, or nothing, is behind: it is waited for, so that a settle that came through is never
        taken for one that was refused. One that says it is open agrees with the chain."""
        until = trio.current_time() + _INDEX_PATIENCE
        while True:
            found = await self.of(held)
            behind = isinstance(outcome, ChainRefused) and outcome.reason == "NotClaimed"
            if found.standing in ("open", "settled", "ended") or not behind or trio.current_time() >= until:
                return found
            await trio.sleep(_LOOK_AGAIN)

    async def of(self, held: ClaimedJob) -> LookedUp:
        """`unknown` when the coordinator does not say, or its index is not there yet. `open`: nobody's, though it was
        claimed: a reorganisation took the claim."""
        try:
            job = await self.coordinator.job(held.job.job_id)
        except Unavailable:
            return LookedUp("unknown", held)
        if job is None:
            return LookedUp("unknown", held)
        if job.state == JobState.OPEN:
            # Whichever claim is mined next, the first again or another, begins a window of its own.
            return LookedUp("open", held.in_window_of(trio.current_time()) if held.was_claimed else held)
        if job.provider_id != self.provider_id:
            # Nobody's, and over: it expired, or its owner cancelled it. Of a job that is run ahead its claim tells.
            is_over = job.state == JobState.CANCELLED and job.provider_id == 0
            return LookedUp("ended" if is_over and held.was_claimed else "unknown", held)
        # Its claim may have been mined again while nobody looked.
        return LookedUp(_STANDINGS[job.state], held.in_window_of(self.clock.in_loop_time(job.claimed_at)))
