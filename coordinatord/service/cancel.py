"""An owner takes an open job back."""

import hashlib
from typing import TypeAlias

import attrs

from common.domains import Domains
from common.messages.jobs import Cancel
from common.secp256k1 import recover
from coordinatord.chain import job_registry
from coordinatord.chain.job_registry import CLAIMED, JobRegistry
from coordinatord.fields import SIGNATURE, UINT64, wire
from coordinatord.service.outcomes import WouldRefuse
from coordinatord.service.posted_jobs import PostedJobs
from coordinatord.service.relaying import Busy, Mined, NoReceipt, RefusedByChain, Relaying
from coordinatord.service.windows import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.store.outbox import NewRelay, Priority, RelayKind


@attrs.frozen(slots=True)
class CancelBody:
    issued_at: int = wire(UINT64, f"Unix seconds, within ±{ISSUED_WITHIN} of the coordinator's clock")
    signature: bytes = wire(SIGNATURE, "the owner's Cancel signature")


Outcome: TypeAlias = Mined | WouldRefuse | RefusedByChain | Busy | NoReceipt


@attrs.frozen(slots=True)
class Cancels:
    domains: Domains
    registry: JobRegistry
    posted: PostedJobs
    relaying: Relaying
    clock: Clock

    async def cancel(self, job_id: bytes, body: CancelBody) -> Outcome:
        """A job that has ended stays as it is, and that is success."""
        if not is_fresh(body.issued_at, self.clock()):
            return WouldRefuse("StaleOp", f"issued_at is not within ±{ISSUED_WITHIN} seconds of now")
        signer = recover(self.domains.jobs.digest(Cancel(job_id, body.issued_at)), body.signature)
        found = await self.posted.find(job_id) if signer is not None else None
        if found is None or found.posted.owner != signer:
            return WouldRefuse("NotTheOwner", "the signature is not the owner's, or there is no such job")
        job = await self.registry.job(job_id)
        if job is not None and job.state == CLAIMED:
            return WouldRefuse("NotCancellable", "the job is claimed")
        return await self.relaying.relay(
            NewRelay(
                kind=RelayKind.CANCEL,
                subject=job_id,
                dedupe=hashlib.sha256(b"cancel" + job_id + body.issued_at.to_bytes(8, "big")).digest(),
                target=self.registry.address,
                calldata=job_registry.cancel(found.posted, body.issued_at, body.signature),
                priority=Priority.EXIT,
            )
        )
