"""Pending offers: a job is offered to one live provider while its post is on its way to a block.

    POST /v1/jobs ─► post queued ─► offer stored, notice ─► every process wakes one waiting poll ─► the first takes it
                                                       it is not for that one (its rates, say) ─► the next is woken
    its claim ─► queued behind the post.    no claim within a second ─► offered to the next.
    post and claim ended ─► deleted within a second; a refused claim frees the job's lease

Only polls that ask for pending offers are given any. An offer is an addition: one that is lost, or that nobody takes,
costs nothing, because the job comes into the book with its block.
"""

import math
import time
from collections.abc import Callable
from typing import Final, NoReturn

import structlog

from coordinatord.api.book import pending_offers_sql
from coordinatord.api.book.book_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.base import metrics
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Mailbox, Wake
from coordinatord.chain.contracts.job_registry import RegisteredJob
from coordinatord.storage.database.connections import Connection, Database

log = structlog.get_logger(__name__)

ANSWER_MS: Final = 1000  # until a provider that does not claim loses an offer
_CLAIM_HELD: Final = 90  # seconds of a lease for a claim behind a post: each may take a minute at most
_HINT_LASTS: Final = 15.0  # seconds in which polls look for what was offered: after that it is in the book
_MOST_HINTS: Final = 10_000
MAX_OFFERS_WAITING: Final = 10_000  # offers that wait to be stored
_DELETE_ENDED_EVERY_S: Final = 1.0


class PendingOffers:
    """Call `hear` and `take` from any task of one event loop, and keep `run` running there. `woken` is called with the
    model and the designated provider when there is something to take."""

    def __init__(
        self,
        database: Database,
        woken: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._woken = woken
        self._clock = clock
        self._hints: dict[tuple[int, int], float] = {}
        self._given: dict[tuple[bytes, int], float] = {}  # when their time is over
        self._given_out = Wake()
        self._line = database.prepared_connection()

    # --- the provider's side ------------------------------------------------------------------------------

    def hear(self, payload: str) -> None:
        model, _, designated = payload.partition(":")
        if not (model.isdecimal() and designated.isdecimal()):
            return
        if len(self._hints) >= _MOST_HINTS:
            self._hints.clear()
        self._hints[int(model), int(designated)] = self._clock() + _HINT_LASTS
        self._woken(int(model), int(designated))

    async def take(self, poller: PollKey, free: int, wanted: JobFilter) -> tuple[list[PendingJob], bool]:
        """Those that are the poller's to claim for the next second; True when others are left that were not for it."""
        if free <= 0 or not self._may_have(poller):
            return [], False

        async def body(connection: Connection) -> tuple[list[PendingJob], bool]:
            jobs = await pending_offers_sql.take(connection, poller, free, wanted, milliseconds=ANSWER_MS)
            return jobs, await pending_offers_sql.some_left(connection, poller.model_id)

        jobs, left = await self._database.transact(body)
        for job in jobs:
            metrics.pending_offers.labels("given").inc()
            self._given[job.posted.job_id, poller.provider_id] = self._clock() + ANSWER_MS / 1000
        if jobs:
            self._given_out()
        return jobs, left

    def _may_have(self, poller: PollKey) -> bool:
        now = self._clock()
        keys = ((poller.model_id, 0), (poller.model_id, poller.provider_id))
        return any(self._hints.get(key, 0.0) > now for key in keys)

    async def run(self) -> NoReturn:
        """Pass offers that their provider did not claim in time on to the next, until cancelled."""
        while True:
            next_end = min(self._given.values(), default=math.inf)
            await self._given_out.wait(max(0.0, next_end - self._clock()))
            now = self._clock()
            over = [key for key, until in self._given.items() if until <= now]
            for key in over:
                del self._given[key]
            if not over:
                continue
            try:
                lapsed = await pending_offers_sql.pass_on(self._line, over)
            except Retryable as error:  # the jobs are in the book with their blocks
                log.warning("pending offers not passed on", reason=str(error))
            else:
                metrics.pending_offers.labels("lapsed").inc(lapsed)

    # --- the claim's side ---------------------------------------------------------------------------------

    async def claimed(self, job_id: bytes, provider_id: int) -> RegisteredJob | None:
        """Terms of a job whose post is under way, for the provider that was offered it last; the job is held for it
        from now on."""

        async def body(connection: Connection) -> tuple[PendingJob, bool] | None:
            return await pending_offers_sql.claim(connection, job_id, provider_id, seconds=_CLAIM_HELD)

        bound = await self._database.transact(body)
        if bound is None:
            return None
        job, first = bound
        if first:  # and not the same claim, sent again to wait for its end
            metrics.pending_offers.labels("claimed").inc()
        return job.registered

    async def claimed_by(self, job_id: bytes, provider_id: int) -> RegisteredJob | None:
        """Terms of a job whose post is under way, for the provider that has claimed it."""
        async with self._database.connection() as connection:
            job = await pending_offers_sql.claimed_by(connection, job_id, provider_id)
        return None if job is None else job.registered


async def keep_offers(database: Database, offered: Mailbox[PendingJob]) -> NoReturn:
    """Store offers, and once a second delete those that have ended, also another process's. Offers that the database
    fails to store are dropped: their jobs come into the book with their blocks."""
    next_deletion = 0.0
    while True:
        jobs = await offered.take(max(0.0, next_deletion - time.monotonic()))
        is_due = time.monotonic() >= next_deletion
        if is_due:
            next_deletion = time.monotonic() + _DELETE_ENDED_EVERY_S
        try:
            async with database.connection() as connection:
                if jobs:
                    await pending_offers_sql.store(connection, jobs)
                    metrics.pending_offers.labels("stored").inc(len(jobs))
                if is_due:
                    metrics.pending_offers.labels("refused").inc(await pending_offers_sql.delete_ended(connection))
        except Retryable as error:
            log.warning("pending offers not stored", reason=str(error), offers=len(jobs))
