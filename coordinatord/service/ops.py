"""POST /evm/ops: one signed op of a provider, from its signature to its receipt."""

import hashlib
from typing import TypeAlias, assert_never

import attrs

from common.artifacts import decode_error
from common.cid import Cid
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.jobs import Claim, Fail, Settle
from common.messages.providers import RequestCapacity, SetIdentity
from common.refusal import Refused
from common.secp256k1 import recover
from coordinatord.chain import job_registry, provider_registry
from coordinatord.chain.job_registry import JobRegistry, Posted, PostedJob
from coordinatord.chain.provider_registry import ProviderRegistry
from coordinatord.chain.views import Reverted, read_many
from coordinatord.service.containers import Containers, result_key
from coordinatord.service.op_bodies import (
    ClaimOp,
    FailOp,
    ProviderOp,
    RequestCapacityOp,
    SetIdentityOp,
    SettleOp,
)
from coordinatord.service.outcomes import NotSigned, WouldRefuse
from coordinatord.service.posted_jobs import PostedJobs
from coordinatord.service.relaying import Busy, Mined, NoReceipt, RefusedByChain, Relaying
from coordinatord.service.uploads import Upload, Uploads
from coordinatord.service.windows import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.store import leases
from coordinatord.store.database import Database
from coordinatord.store.outbox import NewRelay, Priority, RelayKind

# Stands in for a content id while the chain is asked whether it would take the settle at all.
_ANY_CID = str(Cid("raw", hashlib.sha256(b"").digest()))


@attrs.frozen(slots=True)
class OpDone:
    mined: Mined
    result_cid: str | None = None


@attrs.frozen(slots=True)
class StillPending:
    """No receipt yet; `poll` names the route that will tell."""

    tx_hash: bytes
    poll: str


Ended: TypeAlias = OpDone | RefusedByChain | Busy | StillPending
Outcome: TypeAlias = Ended | NotSigned | WouldRefuse


@attrs.frozen(slots=True)
class Ops:
    domains: Domains
    jobs: JobRegistry
    providers: ProviderRegistry
    posted: PostedJobs
    relayer: bytes
    database: Database
    containers: Containers
    uploads: Uploads
    relaying: Relaying
    clock: Clock

    async def run(self, op: ProviderOp, session_address: bytes) -> Outcome:
        """`session_address` decides on `result_cid` alone; the op's signature decides on the op."""
        digest, hash_of_struct = self._signed(op)
        signer = recover(digest, op.signature)
        provider_id = await self.providers.provider_id_of(signer) if signer is not None else None
        if signer is None or provider_id is None:
            return NotSigned(
                "invalid_op_signature", None, "the signature does not recover to a registered provider's wallet"
            )
        # What makes two requests one op: what was signed and by whom; not the signature's bytes.
        same = op.op.encode() + signer + hash_of_struct
        match op:
            case ClaimOp() | SettleOp() | FailOp():
                if not is_fresh(op.issued_at, self.clock()):
                    return WouldRefuse("StaleOp", f"issued_at is not within ±{ISSUED_WITHIN} seconds of now")
                return await self._run_job_op(op, session_address, same)
            case SetIdentityOp():
                calldata = provider_registry.set_identity(op.box_key, op.evidence, op.issued_at, op.signature)
                return await self._run_provider_op(RelayKind.SET_IDENTITY, calldata, signer, provider_id, same)
            case RequestCapacityOp():
                calldata = provider_registry.request_capacity(op.n, op.issued_at, op.signature)
                return await self._run_provider_op(RelayKind.REQUEST_CAPACITY, calldata, signer, provider_id, same)
            case _:
                assert_never(op)

    def _signed(self, op: ProviderOp) -> tuple[bytes, bytes]:
        """The digest that the provider signed, and the struct's own hash."""
        jobs, providers = self.domains.jobs, self.domains.providers
        job_message: Claim | Settle | Fail
        provider_message: SetIdentity | RequestCapacity
        match op:
            case ClaimOp():
                job_message = Claim(op.job_id, op.issued_at)
            case SettleOp():
                job_message = Settle(op.job_id, op.completion_tok, op.issued_at)
            case FailOp():
                job_message = Fail(op.job_id, op.issued_at)
            case SetIdentityOp():
                provider_message = SetIdentity(op.box_key, op.evidence, op.issued_at)
                return providers.digest(provider_message), struct_hash(provider_message)
            case RequestCapacityOp():
                provider_message = RequestCapacity(op.n, op.issued_at)
                return providers.digest(provider_message), struct_hash(provider_message)
            case _:
                assert_never(op)
        return jobs.digest(job_message), struct_hash(job_message)

    async def _run_job_op(self, op: ClaimOp | SettleOp | FailOp, session_address: bytes, same: bytes) -> Outcome:
        upload = await self._upload(op, session_address) if isinstance(op, SettleOp) else None
        job = await self.posted.find(op.job_id, "claim_simulate_read" if isinstance(op, ClaimOp) else "job_read")
        if job is None:
            return WouldRefuse("UnknownJob", "the chain has no such job")
        match op:
            case ClaimOp():
                return await self._claim(op, job, same)
            case SettleOp() if upload is not None:
                return await self._settle_uploaded(op, job.posted, upload, same)
            case SettleOp():
                return await self._settle(op, job.posted, same)
            case FailOp():
                calldata = job_registry.fail(job.posted, op.issued_at, op.signature)
                return await self._relay_job_op(RelayKind.FAIL, Priority.EXIT, op.job_id, calldata, same)
            case _:
                assert_never(op)

    async def _claim(self, op: ClaimOp, job: PostedJob, same: bytes) -> Outcome:
        calldata = job_registry.claim(job, op.issued_at, op.signature)
        outcome = await self._relay_job_op(RelayKind.CLAIM, Priority.OP, op.job_id, calldata, same)
        if isinstance(outcome, RefusedByChain) and outcome.name == "PaymentRefused":
            async with self.database.connection() as connection:
                await leases.hold_back(connection, [op.job_id])
        return outcome

    async def _upload(self, op: SettleOp, session_address: bytes) -> Upload | None:
        """The result that the op names; None for one that it brings along."""
        if op.result_cid is None:
            return None
        upload = await self.uploads.find_result(session_address, op.result_cid)
        if upload is None:
            raise _unknown_result()
        return upload

    async def _settle_uploaded(self, op: SettleOp, posted: Posted, upload: Upload, same: bytes) -> Outcome:
        if not await self.uploads.hold(upload, op.job_id):
            raise _unknown_result()
        outcome = await self._relay_settle(op, posted, upload.cid, same)
        if isinstance(outcome, OpDone):
            await self.uploads.attach(upload)
        return outcome

    async def _settle(self, op: SettleOp, posted: Posted, same: bytes) -> Outcome:
        """The chain is asked first: a result that it would refuse is not stored."""
        view = self.jobs.would_accept(_settle_calldata(op, posted, _ANY_CID), self.relayer)
        (answer,) = await read_many(self.jobs.rpc, [view], "rpc_internal")
        if isinstance(answer, Reverted):
            return RefusedByChain(decode_error(answer.data), answer.data)
        result = op.result if op.result is not None else b""
        async with self.containers.holding(result_key(op.job_id, result), op.job_id, result) as holding:
            outcome = await self._relay_settle(op, posted, holding.cid, same)
            if isinstance(outcome, OpDone):
                holding.took_effect()
            elif isinstance(outcome, RefusedByChain):
                holding.was_refused()
        return outcome

    async def _relay_settle(self, op: SettleOp, posted: Posted, cid: str, same: bytes) -> Ended:
        # The content id is not signed, so it is added to what makes it one op.
        calldata = _settle_calldata(op, posted, cid)
        outcome = await self._relay_job_op(RelayKind.SETTLE, Priority.EXIT, op.job_id, calldata, same + cid.encode())
        return attrs.evolve(outcome, result_cid=cid) if isinstance(outcome, OpDone) else outcome

    async def _relay_job_op(
        self, kind: RelayKind, priority: Priority, job_id: bytes, calldata: bytes, same: bytes
    ) -> Ended:
        dedupe = hashlib.sha256(same).digest()
        relay = NewRelay(kind, job_id, dedupe, self.jobs.address, calldata, priority)
        return _ended(await self.relaying.relay(relay), f"GET /evm/jobs/0x{job_id.hex()}")

    async def _run_provider_op(
        self, kind: RelayKind, calldata: bytes, signer: bytes, provider_id: int, same: bytes
    ) -> Ended:
        subject, dedupe = bytes(12) + signer, hashlib.sha256(same).digest()
        relay = NewRelay(kind, subject, dedupe, self.providers.address, calldata, Priority.OP)
        return _ended(await self.relaying.relay(relay), f"GET /evm/providers/{provider_id}")


def _unknown_result() -> Refused:
    return Refused("result_cid names no live upload of this session", "result_cid", "unknown_result")


def _settle_calldata(op: SettleOp, posted: Posted, cid: str) -> bytes:
    return job_registry.settle(posted, op.completion_tok, op.issued_at, cid, op.signature)


def _ended(outcome: Mined | RefusedByChain | Busy | NoReceipt, poll: str) -> Ended:
    match outcome:
        case Mined():
            return OpDone(outcome)
        case NoReceipt():
            return StillPending(outcome.tx_hash, poll)
        case RefusedByChain() | Busy():
            return outcome
        case _:
            assert_never(outcome)
