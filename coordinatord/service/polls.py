"""GET /evm/jobs with `free`: a provider says that it is there, and is handed jobs that nobody else is handed.

Most polls find nothing: those are answered by one look that all polls of the moment share.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio

from common.refusal import Refused
from coordinatord.service.attendance import Attendance
from coordinatord.service.funding import Funding
from coordinatord.service.lookout import Lookout
from coordinatord.service.outcomes import NotSigned
from coordinatord.store import leases
from coordinatord.store.database import Connection, Database
from coordinatord.store.jobs import JobFilter, JobRow
from coordinatord.store.leases import START, HeldJob, Poller
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot

Leased: TypeAlias = tuple[Snapshot, list[JobRow]]
Custody: TypeAlias = Callable[[Connection], Awaitable[int | None]]

# Leasing polls of one process at a time. More would not be faster, only hold connections that others want; and whoever
# waits here waits for its turn, where in the pool it would be given up.
_AT_ONCE: Final = 4
_ROUNDS: Final = 3  # how often what turned out to be unpaid is replaced; what is left over comes with the next poll


async def no_custody(_: Connection) -> int | None:
    """No block before which an escrow lost its keys."""
    return None


class Polls:
    def __init__(
        self,
        database: Database,
        funding: Funding,
        *,
        lease_ms: int,
        liveness_ms: int,
        custody: Custody = no_custody,
    ) -> None:
        """`custody` tells the block up to which open bids are sealed to keys that an escrow has lost."""
        self._database = database
        self._funding = funding
        self._attendance = Attendance(database, liveness_ms)
        self._lookout = Lookout(database)
        self._lease_ms = lease_ms
        self._custody = custody
        self._turns = anyio.Semaphore(_AT_ONCE)

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
        # No open job has been claimed by anybody: asked for those of a provider, a poll leases none.
        snapshot, held = await self._lease(poller, wanted, 0 if wanted.provider_id else free)
        return snapshot, [job.row for job in held[offset : offset + limit]]

    async def _nothing_for(self, poller: Poller) -> Snapshot | None:
        """When the index holds nothing for it: of which moment that is."""
        if self._lookout.head(poller.model_id) is not START:
            return None  # bids of the model were leased a moment ago, and there are likely to be more
        found = await self._lookout.peek(poller)
        if found.value is None or not found.value.known_model:
            raise Refused("model is not in the catalogue", "model")
        return None if found.value.anything else found.snapshot

    async def _lease(self, poller: Poller, wanted: JobFilter, free: int) -> tuple[Snapshot, list[HeldJob]]:
        for _ in range(_ROUNDS):
            snapshot, held = await self._take(poller, wanted, free)
            new = [job for job in held if job.is_new]
            if not new or not await self._funding.hold_back_unpaid(new, snapshot):
                return snapshot, held
        return await self._take(poller, wanted, 0)

    async def _take(self, poller: Poller, wanted: JobFilter, free: int) -> tuple[Snapshot, list[HeldJob]]:
        is_plain = wanted == JobFilter(state="Open", model_id=poller.model_id)
        after = self._lookout.head(poller.model_id) if is_plain else START

        async def body(connection: Connection) -> tuple[Snapshot, list[HeldJob]]:
            custody = await self._custody(connection)
            return await leases.poll(
                connection, poller, wanted, free=free, lease_ms=self._lease_ms, custody=custody, after=after
            )

        async with self._turns:
            snapshot, held = await self._database.transact(body)
        if is_plain:
            self._lookout.leased(poller.model_id, held)
        return snapshot, held
