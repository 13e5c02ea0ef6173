"""Pending offers: a job is offered to one live provider while its post waits for a block.

    POST /v1/jobs ─► post queued ─► offer stored, notice ─► every process wakes one waiting poll ─► one takes the offer
                                                   the offer does not suit that poll ─► the next poll is woken
    claim ─► queued behind the post.    no claim within a second ─► offered to the next provider.
    post and claim ended ─► offer deleted within a second; a refused claim frees the job's lease

Only polls that request pending offers get any. A lost offer costs nothing, because the job enters the book when its
post is mined.
"""

import math
import time
from collections.abc import Callable
from typing import Final, NoReturn

import structlog

from coordinatord.api.book import pending_offers_sql
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.base.errors import Retryable
from coordinatord.base.wake import Mailbox, Wake
from coordinatord.chain.contracts.job_registry import RegisteredJob
from coordinatord.storage.database.connections import Connection, Database

log = structlog.get_logger(__name__)

OFFER_LIFETIME_MS: Final = 1000  # time in which a provider has to claim the job
_CLAIM_LEASE_S: Final = 90  # a claim waits up to a minute for its post, and then for its own block
MAX_UNSTORED_OFFERS: Final = 10_000  # offers of this process that wait to be stored
_DELETE_ENDED_INTERVAL_S: Final = 1.0


class PendingOffers:
    """Offers of pending jobs to the polls of this process. Call all methods in one event loop, in which `run` must be
    running. `wake_poll` is called with the model and the designated provider when there is an offer to take."""

    def __init__(
        self,
        database: Database,
        wake_poll: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._wake_poll = wake_poll
        self._clock = clock
        self._offer_ends: dict[tuple[bytes, int], float] = {}  # time at which the offer of a job to a provider ends
        self._offers_taken = Wake()
        self._connection = database.prepared_connection()

    def on_offer_notice(self, payload: str) -> None:
        model, _, designated = payload.partition(":")
        if model.isdecimal() and designated.isdecimal():
            self._wake_poll(int(model), int(designated))

    async def take_offers(self, poller: PollKey, free_slots: int, job_filter: JobFilter) -> list[PendingJob]:
        """Return up to `free_slots` jobs that only this provider may claim for the next second."""
        if free_slots <= 0:
            return []

        async def take(connection: Connection) -> list[PendingJob]:
            return await pending_offers_sql.take_offers(
                connection, poller, free_slots, job_filter, milliseconds=OFFER_LIFETIME_MS
            )

        jobs = await self._database.transact(take)
        for job in jobs:
            self._offer_ends[job.posted.job_id, poller.provider_id] = self._clock() + OFFER_LIFETIME_MS / 1000
        if jobs:
            self._offers_taken()
        return jobs

    async def run(self) -> NoReturn:
        """Offer jobs that were not claimed in time to the next provider, until cancelled."""
        while True:
            next_end = min(self._offer_ends.values(), default=math.inf)
            await self._offers_taken.wait(max(0.0, next_end - self._clock()))
            now = self._clock()
            ended = [key for key, end in self._offer_ends.items() if end <= now]
            for key in ended:
                del self._offer_ends[key]
            if not ended:
                continue
            try:
                await pending_offers_sql.notify_unclaimed_offers(self._connection, ended)
            except Retryable as error:
                log.warning("pending offers not passed on", reason=str(error))

    async def claim_offer(self, job_id: bytes, provider_id: int) -> RegisteredJob | None:
        """Bind a job with a pending post to the provider, keep the job leased to it, and return the job's terms. Return
        None if the last offer of the job went to another provider, or if the post has ended."""

        async def claim(connection: Connection) -> RegisteredJob | None:
            return await pending_offers_sql.claim_offer(connection, job_id, provider_id, seconds=_CLAIM_LEASE_S)

        return await self._database.transact(claim)

    async def read_claimed_terms(self, job_id: bytes, provider_id: int) -> RegisteredJob | None:
        """Return the terms of a job with a pending post, if the provider has claimed the job."""
        async with self._database.connection() as connection:
            return await pending_offers_sql.read_claimed_terms(connection, job_id, provider_id)


async def store_offers(database: Database, offers: Mailbox[PendingJob]) -> NoReturn:
    """Store offers. Once a second, delete ended offers of all processes. Drop the offers that the database fails to
    store."""
    next_deletion = 0.0
    while True:
        jobs = await offers.take(max(0.0, next_deletion - time.monotonic()))
        is_due = time.monotonic() >= next_deletion
        if is_due:
            next_deletion = time.monotonic() + _DELETE_ENDED_INTERVAL_S
        try:
            async with database.connection() as connection:
                if jobs:
                    await pending_offers_sql.insert_offers(connection, jobs)
                if is_due:
                    await pending_offers_sql.delete_ended_offers(connection)
        except Retryable as error:
            log.warning("pending offers not stored", reason=str(error), offers=len(jobs))
