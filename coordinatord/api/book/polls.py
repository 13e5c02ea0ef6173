"""Polls (GET /evm/jobs with `free`): a provider reports that it is live, and leases jobs that no other provider holds.

read all waiting polls' outlooks in one statement ─► nothing to lease ─► answer, or wait for news
                                                  └─► jobs or offers ─► lease them in a transaction
"""

from typing import Final

import anyio
import attrs

from common.refusal import Refused
from coordinatord.api.book import leases_sql, outlooks_sql
from coordinatord.api.book.funding import Funding
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.leases_sql import LeaseDemand, LeasedJob, PollKey
from coordinatord.api.book.liveness import Liveness
from coordinatord.api.book.outlooks_sql import PollOutlook
from coordinatord.api.book.pending_offers import PendingOffers
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.waiting import WaitingPoll, WaitingPolls
from coordinatord.api.events.places import Places
from coordinatord.base.outcomes import NotSigned, SessionRow
from coordinatord.storage.database.batched_reads import BatchedReads, IndexRead, with_snapshot
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.snapshot_sql import Snapshot

# Leasing transactions of one process. More would take pooled connections from other requests. Polls wait here, because
# waiting for a pooled connection would time out.
_MAX_TRANSACTIONS: Final = 2
_LEASE_ROUNDS: Final = 3
_EXPIRED_LEASE_CHECK_S: Final = 2.0  # a waiting poll is not notified of a lease that expires


@attrs.frozen(slots=True)
class Leased:
    """Answer to a poll. `pending` has the pending offers, or is None if the poll did not request them."""

    snapshot: Snapshot
    rows: list[JobRow]
    pending: list[PendingJob] | None = None


@attrs.frozen(slots=True)
class Look:
    """Result of one look for a poll. `outlook` was read just before leasing."""

    leased: Leased
    outlook: PollOutlook

    @property
    def is_empty(self) -> bool:
        return not self.leased.rows and not self.leased.pending


@attrs.frozen(slots=True)
class Poll:
    """Request of a provider. `limit` and `offset` select a page of the jobs that it holds after leasing."""

    poller: PollKey
    wanted: JobFilter
    free: int
    limit: int
    offset: int
    pending: bool = False


@attrs.frozen(slots=True)
class PollWaits:
    polls: WaitingPolls
    places: Places


def checked_poll(
    session: SessionRow, wanted: JobFilter, free: int, limit: int, offset: int, *, pending: bool = False
) -> Poll | NotSigned:
    """Return the poll. Raise Refused when it does not name the open jobs of a model."""
    if session.provider_id is None:
        return NotSigned("authentication_error", "not_registered", "free needs a provider session")
    faults = []
    if wanted.state != "Open":
        faults.append(Refused("free needs state=Open", "state"))
    if wanted.model_id is None:
        faults.append(Refused("free needs model", "model"))
    if faults or wanted.model_id is None:
        raise Refused.together(faults)
    return Poll(PollKey(session.provider_id, wanted.model_id), wanted, free, limit, offset, pending)


class Polls:
    def __init__(
        self,
        database: Database,
        funding: Funding,
        *,
        lease_ms: int,
        liveness: Liveness,
        waits: PollWaits | None = None,
        offers: PendingOffers | None = None,
    ) -> None:
        """Without `waits`, every poll is answered at once."""
        self._database = database
        self._funding = funding
        self._lease_ms = lease_ms
        self._liveness = liveness
        self._waits = waits
        self._offers = offers
        self._outlooks = BatchedReads[PollKey, IndexRead[PollOutlook]](
            database.prepared_connection(), with_snapshot(outlooks_sql.read_outlooks)
        )
        self._transactions = anyio.CapacityLimiter(_MAX_TRANSACTIONS)

    async def answer(self, poll: Poll) -> Leased:
        """Record the provider as live, lease it its oldest jobs up to `free`, and return the jobs that it holds."""
        return (await self._look(poll)).leased

    async def answer_or_wait(self, poll: Poll, *, seconds: int, caller: str) -> tuple[Leased, float]:
        """Like `answer`, but wait up to `seconds` while there is nothing for the provider. Return the answer and the
        seconds waited. The provider is live while it waits. A caller without a free place does not wait."""
        if self._waits is None or not seconds or not poll.free or not self._waits.places.has_room(caller):
            return await self.answer(poll), 0.0
        polls = self._waits.polls
        with (
            self._waits.places.held(caller, "poll"),
            polls.waiting(poll.poller, poll.free, pending=poll.pending) as waiting,
        ):
            return await self._wait_for_jobs(poll, waiting, polls, seconds)

    async def _wait_for_jobs(
        self, poll: Poll, waiting: WaitingPoll, polls: WaitingPolls, seconds: int
    ) -> tuple[Leased, float]:
        deadline, waited = anyio.current_time() + seconds, 0.0
        look = await self._look(poll)
        with self._liveness.staying(poll.poller, poll.free):
            while look.is_empty and not polls.closed and (left := deadline - anyio.current_time()) > 0:
                began = anyio.current_time()
                woken = await waiting.wait(min(left, _EXPIRED_LEASE_CHECK_S) if look.outlook.some_open else left)
                waited += anyio.current_time() - began
                look = await self._look(poll, noted=True)
                if woken and look.outlook.some_free and not look.leased.rows:
                    polls.pass_on(waiting)
                if woken and poll.pending and look.outlook.some_offered and not look.leased.pending:
                    polls.pass_offer_on(waiting)
                waiting.looked()
        return look.leased, waited

    async def _look(self, poll: Poll, *, noted: bool = False) -> Look:
        """Look for jobs and pending offers. `noted`: the provider is recorded as live already."""
        read = await self._outlooks.get(poll.poller)
        snapshot, outlook = read.snapshot, read.value
        if outlook is None or not outlook.known_model:
            raise Refused("model is not in the catalogue", "model")
        if not noted:
            await self._liveness.note(poll.poller, poll.free)
        rows: list[JobRow] = []
        if outlook.holds_some or (outlook.some_free and outlook.may_claim):
            snapshot, rows = await self._lease(poll)
        if not poll.pending or self._offers is None:
            return Look(Leased(snapshot, _page(poll, rows)), outlook)
        pending: list[PendingJob] = []
        if outlook.some_offered and outlook.may_claim and poll.wanted.provider_id is None:
            pending = await self._offers.take(poll.poller, poll.free - len(rows), poll.wanted)
        return Look(Leased(snapshot, _page(poll, rows), pending), outlook)

    async def _lease(self, poll: Poll) -> tuple[Snapshot, list[JobRow]]:
        """Return the jobs that the provider holds, oldest first. Jobs that turn out to be unpaid are replaced."""
        # An open job has no provider, so a poll for a provider's jobs leases none.
        demand = LeaseDemand(poll.poller, 0 if poll.wanted.provider_id else poll.free, poll.wanted)
        for _ in range(_LEASE_ROUNDS):
            snapshot, held = await self._lease_once(demand)
            new = [job.row for job in held if job.is_new]
            if not await self._funding.hold_back_unpaid(new, snapshot):
                break
        else:
            snapshot, held = await self._lease_once(attrs.evolve(demand, free=0))
        return snapshot, [job.row for job in held]

    async def _lease_once(self, demand: LeaseDemand) -> tuple[Snapshot, list[LeasedJob]]:
        async def body(connection: Connection) -> tuple[Snapshot, list[LeasedJob]]:
            return await leases_sql.lease(connection, demand, self._lease_ms)

        async with self._transactions:
            return await self._database.transact(body)


def _page(poll: Poll, held: list[JobRow]) -> list[JobRow]:
    ordered = held[::-1] if poll.wanted.newest_first else held
    return ordered[poll.offset : poll.offset + poll.limit]
