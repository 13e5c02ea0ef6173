"""GET /evm/jobs with `free`: a provider says that it is there, and is handed jobs that nobody else is handed.

Most polls find nothing: those are answered by one look that all polls of the moment share.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from common.refusal import Refused
from coordinatord.service.attendance import Attendance
from coordinatord.service.funding import Funding
from coordinatord.service.outcomes import NotSigned
from coordinatord.service.point_reads import Found, PointReads, with_snapshot
from coordinatord.store import leases
from coordinatord.store.database import Connection, Database
from coordinatord.store.jobs import JobFilter, JobRow
from coordinatord.store.leases import HeldJob, Peek, Poller
from coordinatord.store.sessions import SessionRow
from coordinatord.store.snapshot import Snapshot

Leased: TypeAlias = tuple[Snapshot, list[JobRow]]
Custody: TypeAlias = Callable[[Connection], Awaitable[int | None]]

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
        self._peeks = PointReads[Poller, Found[Peek]](database.line(), with_snapshot(leases.peek))
        self._lease_ms = lease_ms
        self._custody = custody

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
        found = await self._peeks.get(poller)
        if found.value is None or not found.value.known_model:
            raise Refused("model is not in the catalogue", "model")
        await self._attendance.note(poller, free)
        if not found.value.anything:
            return found.snapshot, []
        # No open job has been claimed by anybody: asked for those of a provider, a poll leases none.
        snapshot, held = await self._lease(poller, wanted, 0 if wanted.provider_id else free)
        return snapshot, [job.row for job in held[offset : offset + limit]]

    async def _lease(self, poller: Poller, wanted: JobFilter, free: int) -> tuple[Snapshot, list[HeldJob]]:
        for _ in range(_ROUNDS):
            snapshot, held = await self._take(poller, wanted, free)
            new = [job for job in held if job.is_new]
            if not new or not await self._funding.hold_back_unpaid(new, snapshot):
                return snapshot, held
        return await self._take(poller, wanted, 0)

    async def _take(self, poller: Poller, wanted: JobFilter, free: int) -> tuple[Snapshot, list[HeldJob]]:
        async def body(connection: Connection) -> tuple[Snapshot, list[HeldJob]]:
            custody = await self._custody(connection)
            return await leases.poll(connection, poller, wanted, free=free, lease_ms=self._lease_ms, custody=custody)

        return await self._database.transact(body)
