"""What the chain made of an op whose answer was lost, or refused: asked for, never assumed."""

from typing import Final, Literal

import attrs
import trio

from svcd.coordinator.client import Coordinator
from svcd.coordinator.outcomes import ChainRefused, OpOutcome
from svcd.held import Held
from svcd.jobs import JobState
from svcd.trouble import Unavailable

Standing = Literal["held", "settled", "ended", "unknown"]

_INDEX_PATIENCE: Final = 60.0
_LOOK_AGAIN: Final = 2.0


@attrs.frozen(slots=True, eq=False)
class Lookup:
    coordinator: Coordinator
    provider_id: int

    async def after(self, outcome: OpOutcome, held: Held) -> Standing:
        """Where the job stands after an op that was not confirmed. When the chain says that it is no longer claimed,
        an index that says it is, or nothing, is behind: it is waited for, so that a settle that came through is never
        taken for one that was refused."""
        until = trio.current_time() + _INDEX_PATIENCE
        while True:
            standing = await self.standing(held)
            behind = isinstance(outcome, ChainRefused) and outcome.reason == "NotClaimed"
            if standing in ("settled", "ended") or not behind or trio.current_time() >= until:
                return standing
            await trio.sleep(_LOOK_AGAIN)

    async def standing(self, held: Held) -> Standing:
        """`unknown` when the coordinator does not say, or its index is not there yet."""
        try:
            job = await self.coordinator.job(held.job.job_id)
        except Unavailable:
            return "unknown"
        if job is None or job.provider_id != self.provider_id:
            return "unknown"
        match job.state:
            case JobState.CLAIMED:
                return "held"
            case JobState.SETTLED:
                return "settled"
            case JobState.CANCELLED:
                return "ended"
            case _:
                return "unknown"
