"""Cancel of an open job by its owner."""

import hashlib
from typing import TypeAlias

import attrs

from common.api.fields import SIGNATURE, UINT64, body_field
from common.domains import Domains
from common.messages.jobs import Cancel
from common.secp256k1 import recover_address
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.orders.endings import EndingFinder
from coordinatord.base.clock import MAX_OP_SKEW_S, Clock, is_fresh
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import PredictedRefusal
from coordinatord.chain.contracts import job_registry
from coordinatord.chain.contracts.job_registry import CLAIMED, OPEN, JobRegistry
from coordinatord.chain.relayer import outbox_sql
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.storage.database.connections import Database


@attrs.frozen(slots=True)
class CancelBody:
    issued_at: int = body_field(UINT64)
    signature: bytes = body_field(SIGNATURE, "the owner's Cancel signature")


@attrs.frozen(slots=True)
class AlreadyEnded:
    """Outcome for a job that had ended before the request. `tx_hash` is the transaction that ended it. Nothing was
    relayed."""

    tx_hash: bytes


CancelOutcome: TypeAlias = RelayMined | AlreadyEnded | PredictedRefusal | RefusedByChain | RelayBusy | NoReceipt


@attrs.frozen(slots=True)
class CancelService:
    database: Database
    domains: Domains
    registry: JobRegistry
    posted_jobs: PostedJobs
    budgets: GasBudgets
    ending_finder: EndingFinder
    relaying: Relaying
    clock: Clock

    async def cancel(self, job_id: bytes, body: CancelBody) -> CancelOutcome:
        """Cancel an open job. For a job that has ended, return the transaction that ended it.

        A job expires without a transaction. So the first cancel of an expired job is relayed, and later cancels return
        the transaction of the first cancel.
        """
        if not is_fresh(body.issued_at, self.clock()):
            return PredictedRefusal("StaleOp", f"issued_at is not within ±{MAX_OP_SKEW_S} seconds of now")
        signer = recover_address(self.domains.jobs.digest(Cancel(job_id, body.issued_at)), body.signature)
        found = await self.posted_jobs.find(job_id) if signer is not None else None
        job = await self.registry.read_job(job_id) if found is not None else None
        if found is None and signer is not None:
            await self._wait_for_post(job_id, signer)
        if found is None or found.posted.owner != signer or job is None:
            return PredictedRefusal("NotTheOwner", "the job does not exist, or its owner did not sign this cancel")
        if job.state == CLAIMED:
            return PredictedRefusal("NotCancellable", "the job is claimed")
        ended = await self.ending_finder.find_transaction(job_id, in_logs=job.state != OPEN)
        if ended is not None:
            return AlreadyEnded(ended)
        calldata = job_registry.cancel_calldata(found.posted, body.issued_at, body.signature)
        admitted = await self.budgets.admit(RelayKind.CANCEL, signer, job_id, len(calldata))
        return await self.relaying.relay(
            NewRelay(
                kind=RelayKind.CANCEL,
                subject=job_id,
                # The digest leaves out the time, so that all requests to cancel a job join one relay.
                dedupe=hashlib.sha256(b"cancel" + job_id).digest(),
                target=self.registry.address,
                calldata=calldata,
                priority=Priority.OP,
                signer=signer,
                gas_estimate=admitted.spending.gas_estimate,
                spending=admitted.spending,
            )
        )

    async def _wait_for_post(self, job_id: bytes, owner: bytes) -> None:
        """Raise Retryable while the job's post is pending, because the chain does not know the job's owner yet."""
        async with self.database.connection() as connection:
            if await outbox_sql.is_under_way(connection, job_id, post_of=owner):
                message = "the job's post is not in a block yet; send the cancel again later"
                raise Retryable("not_ready", message, retry_after=1)
