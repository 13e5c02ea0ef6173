"""An owner takes an open job back."""

import hashlib
from typing import TypeAlias

import attrs

from common.domains import Domains
from common.messages.jobs import Cancel
from common.secp256k1 import recover
from coordinatord.chain import job_registry
from coordinatord.chain.job_registry import BY_EXPIRY, CLAIMED, OPEN, ChainJob, JobRegistry
from coordinatord.fields import SIGNATURE, UINT64, wire
from coordinatord.service.endings import Endings
from coordinatord.service.gas_budgets import GasBudgets
from coordinatord.service.outcomes import WouldRefuse
from coordinatord.service.relaying import Busy, Mined, NoReceipt, RefusedByChain, Relaying
from coordinatord.service.windows import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.store.outbox import NewRelay, Priority, RelayKind


@attrs.frozen(slots=True)
class CancelBody:
    issued_at: int = wire(UINT64, f"Unix seconds, within ±{ISSUED_WITHIN} of the coordinator's clock")
    signature: bytes = wire(SIGNATURE, "the owner's Cancel signature")


@attrs.frozen(slots=True)
class HasEnded:
    """Nothing was relayed: this transaction had ended the job before, or cancelled it after it had expired."""

    tx_hash: bytes


Outcome: TypeAlias = Mined | HasEnded | WouldRefuse | RefusedByChain | Busy | NoReceipt


@attrs.frozen(slots=True)
class Cancels:
    domains: Domains
    registry: JobRegistry
    budgets: GasBudgets
    endings: Endings
    relaying: Relaying
    clock: Clock

    async def cancel(self, job_id: bytes, body: CancelBody) -> Outcome:
        """A job that has ended stays as it is, and that is success; what ended it is the answer, and costs nothing.

        No transaction ends a job by expiry. One that expired is cancelled once, which changes nothing, and that
        transaction is the answer from then on.
        """
        if not is_fresh(body.issued_at, self.clock()):
            return WouldRefuse("StaleOp", f"issued_at is not within ±{ISSUED_WITHIN} seconds of now")
        signer = recover(self.domains.jobs.digest(Cancel(job_id, body.issued_at)), body.signature)
        job = await self.registry.job(job_id) if signer is not None else None
        if job is None or job.owner != signer:
            return WouldRefuse("NotTheOwner", "the signature is not the owner's, or there is no such job")
        if job.state == CLAIMED:
            return WouldRefuse("NotCancellable", "the job is claimed")
        ended = await self._ended_by(job_id, job)
        if ended is not None:
            return HasEnded(ended)
        calldata = job_registry.cancel(job_id, body.issued_at, body.signature)
        admitted = await self.budgets.admit(RelayKind.CANCEL, job.owner, job_id, len(calldata))
        return await self.relaying.relay(
            NewRelay(
                kind=RelayKind.CANCEL,
                subject=job_id,
                # Whatever its time: one cancel of a job at a time is enough for all who ask for it.
                dedupe=hashlib.sha256(b"cancel" + job_id).digest(),
                target=self.registry.address,
                calldata=calldata,
                priority=Priority.OP,
                signer=job.owner,
                gas_estimate=admitted.spending.estimate,
                spending=admitted.spending,
            )
        )

    async def _ended_by(self, job_id: bytes, job: ChainJob) -> bytes | None:
        """None: the job is open, or expired and never cancelled, or nobody knows any more what ended it."""
        if job.state == OPEN or job.ended_because == BY_EXPIRY:
            return await self.endings.known(job_id)
        return await self.endings.find(job_id)
