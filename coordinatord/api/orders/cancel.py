"""Cancel of an open job by its owner."""

import hashlib
from typing import TypeAlias

import attrs

from common.api.fields import SIGNATURE, UINT64, wire
from common.domains import Domains
from common.messages.jobs import Cancel
from common.secp256k1 import recover
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.orders.endings import Endings
from coordinatord.base.clock import MAX_OP_SKEW_S, Clock, is_fresh
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import WouldRefuse
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import CLAIMED, OPEN, ChainJob, JobRegistry
from coordinatord.chain.relayer import results_sql
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.storage.database.connections import Database


@attrs.frozen(slots=True)
class CancelBody:
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, "the owner's Cancel signature")


@attrs.frozen(slots=True)
class HasEnded:
    """The job had ended by this transaction before. Nothing was relayed."""

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
        """Cancel an open job. For a job that has ended, return the transaction that ended it.

        A job expires without a transaction. So the first cancel of an expired job is relayed, and later cancels return
        its transaction.
        """
        if not is_fresh(body.issued_at, self.clock()):
            return WouldRefuse("StaleOp", f"issued_at is not within ±{MAX_OP_SKEW_S} seconds of now")
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
                # Without the time, so that all requests to cancel a job join one relay.
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
        """Raise Retryable while the job's post is pending, because the chain does not know the job's owner yet."""
        async with self.database.connection() as connection:
            if await results_sql.post_under_way(connection, job_id, owner):
                message = "the job's post is not in a block yet; send the same again after it"
                raise Retryable("not_ready", message, retry_after=1)

    async def _ended_by(self, job_id: bytes, job: ChainJob) -> bytes | None:
        """Return the transaction that ended the job, or None if the job is open or no node has the transaction."""
        if job.state == OPEN:
            return await self.endings.known(job_id)
        return await self.endings.find(job_id)
