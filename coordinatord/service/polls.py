"""GET /evm/jobs with `free`: a provider says that it is there, and is handed jobs that nobody else is handed.

Most polls find nothing: those are answered by one look that all polls of the moment share.
"""

from typing import Final, TypeAlias

from common.refusal import Refused
from coordinatord.service.attendance import Attendance
from coordinatord.service.funding import Funding
from coordinatord.service.leasing import Custody, Held, Leasing, Wish
from coordinatord.service.lookout import Lookout
from coordinatord.service.outcomes import NotSigned
from coordinatord.service.recent import Recent
from coordinatord.store.database import Connection, Database
from coordinatord.store.jobs import JobFilter, JobRow
from coordinatord.store.leases import START, Poller
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot

Leased: TypeAlias = tuple[Snapshot, list[JobRow]]

_ROUNDS: Final = 3  # how often what turned out to be unpaid is replaced; what is left over comes with the next poll


async def no_custody(_: Connection) -> int | None:
    """No block before which an escrow lost its keys."""
    return None


class Polls:
    def __init__(
        self,
        database: Database,
        funding: Funding,
        position: Recent[Snapshot],
        *,
        lease_ms: int,
        liveness_ms: int,
        custody: Custody = no_custody,
    ) -> None:
        """`custody` tells the block up to which open bids are sealed to keys that an escrow has lost."""
        self._funding = funding
        self._attendance = Attendance(database, liveness_ms)
        self._lookout = Lookout(database, position)
        self._leasing = Leasing(database, self._lookout, lease_ms, custody)

    async def poll(
        self, session: SessionRow, wanted: JobFilter, free: int, limit: int, offset: int
    ) -> Leased | NotSigned:
        """Record the provider as live with `free` slots, lease it the oldest jobs it may claim, give what it holds."""
        if session.provider_id is None:
            return NotSigned("authentication_error", "not_registered", "free needs a provider session")
        if wanted.state != "Open":
            raise Refused("free needs state=Open", "state")
        if wanted.model_id is None:
            raise Refused("free needs model", "model")
        poller = Poller(session.provider_id, wanted.model_id)
        nothing = await self._nothing_for(poller)
        await self._attendance.note(poller, free)
        if nothing is not None:
            return nothing, []
        filters = JobFilter(
            owner=wanted.owner,
            min_rate_in=wanted.min_rate_in,
            min_rate_out=wanted.min_rate_out,
            posted_before=wanted.posted_before,
        )
        # No open job has been claimed by anybody: asked for those of a provider, a poll leases none.
        snapshot, held = await self._lease(Wish(poller, 0 if wanted.provider_id else free, filters))
        return snapshot, [job.row for job in held[offset : offset + limit]]

    async def _nothing_for(self, poller: Poller) -> Snapshot | None:
        """When the index holds nothing for it: of which moment that is."""
        if self._lookout.head(poller.model_id) is not START:
            return None  # bids of the model were leased a moment ago, and there are likely to be more
        found = await self._lookout.peek(poller)
        if found.value is None or not found.value.known_model:
            raise Refused("model is not in the catalogue", "model")
        return None if found.value.anything else found.snapshot

    async def _lease(self, wish: Wish) -> Held:
        for _ in range(_ROUNDS):
            snapshot, held = await self._leasing.take(wish)
            new = [job for job in held if job.is_new]
            if not new or not await self._funding.hold_back_unpaid(new, snapshot):
                return snapshot, held
        return await self._leasing.take(wish._replace(free=0))
