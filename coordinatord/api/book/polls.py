"""Polls (GET /evm/jobs with `free`): a provider reports that it is live, and leases jobs that are not leased yet.

read all waiting polls' outlooks in one statement ─► nothing to lease ─► answer, or wait for news
                                                  └─► jobs or offers ─► lease them in a transaction
"""

from typing import Final

import anyio
import attrs

from common.refusal import Refused
from common.tracing import spans
from coordinatord.api.book import leases_sql, outlooks_sql
from coordinatord.api.book.funding import FundsChecker
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.leases_sql import LeasedJob, PollKey
from coordinatord.api.book.liveness import LivenessRecorder
from coordinatord.api.book.outlooks_sql import PollOutlook
from coordinatord.api.book.pending_offers import PendingOffers
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.waiting import WaitingPoll, WaitingPolls
from coordinatord.api.events.connection_limits import ConnectionLimits
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import SessionRow, Unauthorised
from coordinatord.storage.database import traces_sql
from coordinatord.storage.database.batched_reads import BatchedReads, IndexRead, with_snapshot
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.snapshot_sql import Snapshot

# Concurrent leasing transactions of one process. More would take pooled connections from other requests. Further polls
# wait for one of these transactions to end, because waiting for a pooled connection would time out.
_MAX_LEASING_TRANSACTIONS: Final = 2
_MAX_LEASE_ROUNDS: Final = 3
_EXPIRED_LEASE_CHECK_INTERVAL_S: Final = (
    2.0  # waiting polls check this often, because no notice reports an expired lease
)


@attrs.frozen(slots=True)
class PollAnswer:
    """Answer to a poll. `offers` has the pending offers, or is None if the poll did not request them."""

    snapshot: Snapshot
    jobs: list[JobRow]
    offers: list[PendingJob] | None = None


@attrs.frozen(slots=True)
class FoundWork:
    """Jobs and offers that one search found. `outlook` has the facts about them that were read just before leasing."""

    answer: PollAnswer
    outlook: PollOutlook

    @property
    def is_empty(self) -> bool:
        return not self.answer.jobs and not self.answer.offers


@attrs.frozen(slots=True)
class Poll:
    """Poll of a provider. `limit` and `offset` select a page of the jobs that the provider holds after leasing."""

    poller: PollKey
    job_filter: JobFilter
    free_slots: int
    limit: int
    offset: int
    wants_offers: bool = False


def build_poll(
    session: SessionRow, job_filter: JobFilter, free_slots: int, limit: int, offset: int, *, wants_offers: bool = False
) -> Poll | Unauthorised:
    """Return the poll, or Unauthorised if the session is not a provider's. Raise Refused unless `job_filter` selects
    the open jobs of one model."""
    if session.provider_id is None:
        return Unauthorised("authentication_error", "not_registered", "`free` requires a session with role `provider`")
    faults = []
    if job_filter.state != "Open":
        faults.append(Refused("`free` requires `state=Open`", "state"))
    if job_filter.model_id is None:
        faults.append(Refused("`free` requires `model`", "model"))
    if faults or job_filter.model_id is None:
        raise Refused.combine(faults)
    return Poll(PollKey(session.provider_id, job_filter.model_id), job_filter, free_slots, limit, offset, wants_offers)


class PollService:
    def __init__(
        self,
        database: Database,
        funding: FundsChecker,
        *,
        lease_ms: int,
        liveness: LivenessRecorder,
        waiting_polls: WaitingPolls,
        connection_limits: ConnectionLimits,
        offers: PendingOffers,
    ) -> None:
        self._database = database
        self._funding = funding
        self._lease_ms = lease_ms
        self._liveness = liveness
        self._waiting_polls = waiting_polls
        self._connection_limits = connection_limits
        self._offers = offers
        self._outlooks = BatchedReads[PollKey, IndexRead[PollOutlook]](
            database.prepared_connection(), with_snapshot(outlooks_sql.read_outlooks)
        )
        self._transactions = anyio.CapacityLimiter(_MAX_LEASING_TRANSACTIONS)

    async def answer(self, poll: Poll) -> PollAnswer:
        """Record the provider as live, and lease the oldest jobs to the provider until it holds `free_slots` jobs.
        Return the jobs that it holds."""
        return (await self._find_work(poll)).answer

    async def answer_or_wait(self, poll: Poll, *, seconds: int, caller: str) -> tuple[PollAnswer, float]:
        """Like `answer`, but wait up to `seconds` while there is nothing for the provider. Return the answer and the
        seconds waited. The provider is live while it waits. A caller that is at its connection limit does not wait."""
        if not seconds or not poll.free_slots or not self._connection_limits.has_room(caller):
            return await self.answer(poll), 0.0
        with (
            self._connection_limits.count_connection(caller, "poll"),
            self._waiting_polls.register(poll.poller, poll.free_slots, wants_offers=poll.wants_offers) as waiting,
        ):
            return await self._wait_for_jobs(poll, waiting, seconds)

    async def read_trace_contexts(self, leased: PollAnswer) -> dict[bytes, str]:
        """Return the trace contexts of the answer's jobs. Omit orders that are not traced. Return an empty mapping if
        tracing is off or the database is unavailable."""
        job_ids = [row.job_id for row in leased.jobs] + [job.posted.job_id for job in leased.offers or ()]
        if not job_ids or not spans.is_on():
            return {}
        try:
            async with self._database.connection() as connection:
                return await traces_sql.read_contexts_of_orders(connection, job_ids)
        except Retryable:
            return {}  # the provider then begins a new trace

    async def _wait_for_jobs(self, poll: Poll, waiting: WaitingPoll, seconds: int) -> tuple[PollAnswer, float]:
        polls = self._waiting_polls
        deadline, waited = anyio.current_time() + seconds, 0.0
        found = await self._find_work(poll)
        with self._liveness.keep_live(poll.poller, poll.free_slots):
            while found.is_empty and not polls.closed and (left := deadline - anyio.current_time()) > 0:
                began = anyio.current_time()
                woken = await waiting.wait(
                    min(left, _EXPIRED_LEASE_CHECK_INTERVAL_S) if found.outlook.has_open_jobs else left
                )
                waited += anyio.current_time() - began
                found = await self._find_work(poll, is_recorded=True)
                if woken and found.outlook.has_free_jobs and not found.answer.jobs:
                    polls.wake_another(waiting)
                if woken and poll.wants_offers and found.outlook.has_offers and not found.answer.offers:
                    polls.wake_another_for_offer(waiting)
                waiting.mark_searched()
        return found.answer, waited

    async def _find_work(self, poll: Poll, *, is_recorded: bool = False) -> FoundWork:
        """Look for jobs and pending offers. `is_recorded` means that the provider has already been recorded as live."""
        read = await self._outlooks.get(poll.poller)
        snapshot, outlook = read.snapshot, read.value
        if outlook is None or not outlook.known_model:
            raise Refused("model must be the id of a model in the catalogue", "model")
        if not is_recorded:
            await self._liveness.record_poll(poll.poller, poll.free_slots)
        rows: list[JobRow] = []
        if outlook.has_leases or (outlook.has_free_jobs and outlook.may_claim):
            snapshot, rows = await self._lease_funded(poll)
        if not poll.wants_offers:
            return FoundWork(PollAnswer(snapshot, _select_page(poll, rows)), outlook)
        offers: list[PendingJob] = []
        if outlook.has_offers and outlook.may_claim and poll.job_filter.provider_id is None:
            offers = await self._offers.take_offers(poll.poller, poll.free_slots - len(rows), poll.job_filter)
        return FoundWork(PollAnswer(snapshot, _select_page(poll, rows), offers), outlook)

    async def _lease_funded(self, poll: Poll) -> tuple[Snapshot, list[JobRow]]:
        """Lease jobs, and replace newly leased jobs that their owners cannot pay for. Return the jobs that the provider
        holds, oldest first."""
        # An open job has no provider, so a poll that filters by provider leases no jobs.
        free_slots = 0 if poll.job_filter.provider_id else poll.free_slots
        for _ in range(_MAX_LEASE_ROUNDS):
            snapshot, held = await self._lease_once(poll, free_slots)
            new = [job.row for job in held if job.is_new]
            if not await self._funding.hold_back_unpaid(new, snapshot):
                break
        else:
            snapshot, held = await self._lease_once(poll, 0)
        return snapshot, [job.row for job in held]

    async def _lease_once(self, poll: Poll, free_slots: int) -> tuple[Snapshot, list[LeasedJob]]:
        async def lease(connection: Connection) -> tuple[Snapshot, list[LeasedJob]]:
            return await leases_sql.lease_jobs(connection, poll.poller, free_slots, poll.job_filter, self._lease_ms)

        async with self._transactions:
            return await self._database.transact(lease)


def _select_page(poll: Poll, held: list[JobRow]) -> list[JobRow]:
    ordered = held[::-1] if poll.job_filter.newest_first else held
    return ordered[poll.offset : poll.offset + poll.limit]
