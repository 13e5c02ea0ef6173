"""Pending offers: a job is offered to one live provider while its post waits for a block.

    POST /v1/jobs ─► post queued ─► offer stored, notice ─► every process wakes one waiting poll ─► the first takes it
                                                   it is not for that provider (its rates, say) ─► the next is woken
    claim ─► queued behind the post.    no claim within a second ─► offered to the next provider.
    post and claim ended ─► deleted within a second; a refused claim frees the job's lease

Only polls that request pending offers get any. A lost offer costs nothing, because the job comes into the book with its
block.
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

OFFER_MS: Final = 1000  # time in which a provider has to claim
_CLAIM_LEASE_S: Final = 90  # a claim waits up to a minute for its post, and then for its own block
MAX_OFFERS_WAITING: Final = 10_000  # to be stored
_DELETE_ENDED_EVERY_S: Final = 1.0


class PendingOffers:
    """Call all methods in one event loop, and keep `run` running there. `woken` is called with the model and the
    designated provider when there is an offer to take."""

    def __init__(
        self,
        database: Database,
        woken: Callable[[int, int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._woken = woken
        self._clock = clock
        self._taken: dict[tuple[bytes, int], float] = {}  # end of each provider's offer
        self._some_taken = Wake()
        self._line = database.prepared_connection()

    def hear(self, payload: str) -> None:
        model, _, designated = payload.partition(":")
        if model.isdecimal() and designated.isdecimal():
            self._woken(int(model), int(designated))

    async def take(self, poller: PollKey, free: int, wanted: JobFilter) -> list[PendingJob]:
        """Return up to `free` jobs that the provider alone may claim for the next second."""
        if free <= 0:
            return []

        async def body(connection: Connection) -> list[PendingJob]:
            return await pending_offers_sql.take(connection, poller, free, wanted, milliseconds=OFFER_MS)

        jobs = await self._database.transact(body)
        for job in jobs:
            self._taken[job.posted.job_id, poller.provider_id] = self._clock() + OFFER_MS / 1000
        if jobs:
            self._some_taken()
        return jobs

    async def run(self) -> NoReturn:
        """Offer jobs that their provider did not claim in time to the next provider, until cancelled."""
        while True:
            next_end = min(self._taken.values(), default=math.inf)
            await self._some_taken.wait(max(0.0, next_end - self._clock()))
            now = self._clock()
            ended = [key for key, end in self._taken.items() if end <= now]
            for key in ended:
                del self._taken[key]
            if not ended:
                continue
            try:
                await pending_offers_sql.pass_on(self._line, ended)
            except Retryable as error:
                log.warning("pending offers not passed on", reason=str(error))

    async def claimed(self, job_id: bytes, provider_id: int) -> RegisteredJob | None:
        """Return the terms of a job with a pending post, and keep the job leased to the provider. Return nothing if
        the last offer of the job went to another provider."""

        async def body(connection: Connection) -> PendingJob | None:
            return await pending_offers_sql.claim(connection, job_id, provider_id, seconds=_CLAIM_LEASE_S)

        job = await self._database.transact(body)
        return None if job is None else job.registered

    async def claimed_by(self, job_id: bytes, provider_id: int) -> RegisteredJob | None:
        """Return the terms of a job with a pending post, if the provider has claimed it."""
        async with self._database.connection() as connection:
            job = await pending_offers_sql.claimed_by(connection, job_id, provider_id)
        return None if job is None else job.registered


async def keep_offers(database: Database, offered: Mailbox[PendingJob]) -> NoReturn:
    """Store offers. Once a second, delete ended offers of all processes. If the database fails to store offers, they
    are dropped."""
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
                if is_due:
                    await pending_offers_sql.delete_ended(connection)
        except Retryable as error:
            log.warning("pending offers not stored", reason=str(error), offers=len(jobs))
