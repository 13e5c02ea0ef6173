"""What the chain made of an op whose answer was lost, or refused: asked for, never assumed."""

from typing import Literal

import attrs

from svcd.coordinator.client import Coordinator
from svcd.held import Held
from svcd.jobs import JobState
from svcd.trouble import Unavailable

Standing = Literal["held", "settled", "ended", "unknown"]


@attrs.frozen(slots=True, eq=False)
class Lookup:
    coordinator: Coordinator
    provider_id: int

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
