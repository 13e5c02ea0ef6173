"""Cancel of an open job by its owner."""

import hashlib
from typing import Final, TypeAlias

import attrs

from common.api.fields import SIGNATURE, UINT64, wire
from common.domains import Domains
from common.messages.jobs import Cancel
from common.secp256k1 import recover
from coordinatord.api.book import jobs_sql
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.base.clock import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import WouldRefuse
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import CLAIMED, OPEN, ChainJob, JobRegistry
from coordinatord.chain.relayer import endings_sql, results_sql
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.storage.database.connections import Database

_MOST_RANGES: Final = 400  # a job lives for two days at most


@attrs.frozen(slots=True)
class Endings:
    """Transactions that ended jobs.

    The outbox knows one that this deployment relayed. An owner or provider may have sent it alone, or another
    coordinator relayed it: then the chain's logs are searched, from the block of the post on, once for each job.
    `widest`: blocks of one search."""

    database: Database
    registry: JobRegistry
    widest: int

    async def known(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            return await endings_sql.ending_of(connection, job_id)

    async def find(self, job_id: bytes) -> bytes | None:
        """None when the chain has no such log: the node has pruned it. `Retryable` when it cannot be told now."""
        known = await self.known(job_id)
        if known is not None:
            return known
        found = await self._search(job_id)
        if found is not None:
            async with self.database.connection() as connection:
                await endings_sql.remember_ending(connection, job_id, found)
        return found

    async def _search(self, job_id: bytes) -> bytes | None:
        async with self.database.connection() as connection:
            posted = await jobs_sql.read_posted_block(connection, job_id)
        if posted is None:
            raise Retryable("not_ready", "the index does not know the job yet", retry_after=1)
        head = await self.registry.head()
        for _ in range(_MOST_RANGES):
            if posted > head:
                return None
            last = min(posted + self.widest - 1, head)
            found = await self.registry.ended_in(job_id, posted, last)
            if found is not None:
                return found
            posted = last + 1
        return None


@attrs.frozen(slots=True)
class CancelBody:
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, "the owner's Cancel signature")


@attrs.frozen(slots=True)
class HasEnded:
    """Nothing was relayed: this transaction had ended the job before, or cancelled it after it had expired."""

    tx_hash: bytes


CancelOutcome: TypeAlias = RelayMined | HasEnded | WouldRefuse | RefusedByChain | RelayBusy | NoReceipt


@attrs.frozen(slots=True)
class Cancels:
    database: Database
    domains: Domains
    registry: JobRegistry
    posted: PostedJobs
    budgets: GasBudgets
    endings: Endings
    relaying: Relaying
    clock: Clock

    async def cancel(self, job_id: bytes, body: CancelBody) -> CancelOutcome:
        """A job that has ended stays as it is, and that is success; what ended it is the answer, and costs nothing.

        No transaction ends a job by expiry. One that expired is cancelled once, which changes nothing, and that
        transaction is the answer from then on.
        """
        if not is_fresh(body.issued_at, self.clock()):
            return WouldRefuse("StaleOp", f"issued_at is not within ±{ISSUED_WITHIN} seconds of now")
        signer = recover(self.domains.jobs.digest(Cancel(job_id, body.issued_at)), body.signature)
        found = await self.posted.find(job_id) if signer is not None else None
        job = await self.registry.job(job_id) if found is not None else None
        if found is None and signer is not None:
            await self._wait_for_post(job_id, signer)
        if found is None or found.posted.owner != signer or job is None:
            return WouldRefuse("NotTheOwner", "the signature is not the owner's, or there is no such job")
        if job.state == CLAIMED:
            return WouldRefuse("NotCancellable", "the job is claimed")
        ended = await self._ended_by(job_id, job)
        if ended is not None:
            return HasEnded(ended)
        calldata = job_registry.cancel(found.posted, body.issued_at, body.signature)
        admitted = await self.budgets.admit(RelayKind.CANCEL, signer, job_id, len(calldata))
        return await self.relaying.relay(
            NewRelay(
                kind=RelayKind.CANCEL,
                subject=job_id,
                # Whatever its time: one cancel of a job at a time is enough for all who ask for it.
                dedupe=hashlib.sha256(b"cancel" + job_id).digest(),
                target=self.registry.address,
                calldata=calldata,
                priority=Priority.OP,
                signer=signer,
                gas_estimate=admitted.spending.estimate,
                spending=admitted.spending,
            )
        )

    async def _wait_for_post(self, job_id: bytes, owner: bytes) -> None:
        """The chain knows nothing of a job before the block of its post: an owner who comes sooner is no stranger."""
        async with self.database.connection() as connection:
            if await results_sql.post_under_way(connection, job_id, owner):
                message = "the job's post is not in a block yet; send the same again after it"
                raise Retryable("not_ready", message, retry_after=1)

    async def _ended_by(self, job_id: bytes, job: ChainJob) -> bytes | None:
        """None: the job is open, or expired and never cancelled, or nobody knows any more what ended it."""
        if job.state == OPEN:
            return await self.endings.known(job_id)
        return await self.endings.find(job_id)
