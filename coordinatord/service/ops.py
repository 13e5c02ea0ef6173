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
from coordinatord.chain.job_registry import JobRegistry
from coordinatord.chain.provider_registry import ProviderRegistry
from coordinatord.chain.views import Reverted, read_many
from coordinatord.service.containers import Containers, result_key
from coordinatord.service.gas_budgets import GasBudgets, gas_estimate
from coordinatord.service.op_bodies import (
    ClaimOp,
    FailOp,
    ProviderOp,
    RequestCapacityOp,
    SetIdentityOp,
    SettleOp,
)
from coordinatord.service.outcomes import NotSigned, WouldRefuse
from coordinatord.service.relaying import Busy, Mined, NoReceipt, RefusedByChain, Relaying
from coordinatord.service.uploads import Uploads
from coordinatord.service.windows import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.store import leases
from coordinatord.store.database import Database
from coordinatord.store.jobs import read_payment
from coordinatord.store.outbox import NewRelay, Priority, RelayKind
from coordinatord.trouble import Retryable

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
    relayer: bytes
    database: Database
    budgets: GasBudgets
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
                return await self._run_job_op(op, signer, session_address, same)
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

    async def _run_job_op(
        self, op: ClaimOp | SettleOp | FailOp, signer: bytes, session_address: bytes, same: bytes
    ) -> Outcome:
        match op:
            case ClaimOp():
                return await self._claim(op, signer, same)
            case SettleOp():
                return await self._settle(op, signer, session_address, same)
            case FailOp():
                calldata = job_registry.fail(op.job_id, op.issued_at, op.signature)
                return await self._relay_exit(RelayKind.FAIL, op.job_id, calldata, signer, same)
            case _:
                assert_never(op)

    async def _claim(self, op: ClaimOp, signer: bytes, same: bytes) -> Outcome:
        admitted = await self.budgets.admit(RelayKind.CLAIM, signer, op.job_id)
        payment = await read_payment(self.database, op.job_id)
        if payment is None:
            name = decode_error(await self.jobs.claim_refusal(op.job_id, signer))
            if name is not None:
                return WouldRefuse(name, "the chain would refuse the claim")
            raise Retryable("not_ready", "the index does not know the job yet", retry_after=1)
        calldata = job_registry.claim(op.job_id, op.issued_at, op.signature, payment)
        relay = NewRelay(
            kind=RelayKind.CLAIM,
            subject=op.job_id,
            dedupe=hashlib.sha256(same).digest(),
            target=self.jobs.address,
            calldata=calldata,
            priority=Priority.OP,
            signer=signer,
            gas_estimate=admitted.spending.estimate,
            spending=admitted.spending,
        )
        outcome = _ended(await self.relaying.relay(relay), _poll(op.job_id))
        if isinstance(outcome, RefusedByChain) and outcome.name == "PaymentRefused":
            async with self.database.connection() as connection:
                await leases.hold_back(connection, [op.job_id])
        return outcome

    async def _settle(self, op: SettleOp, signer: bytes, session_address: bytes, same: bytes) -> Outcome:
        """The chain is asked first: a result that it would refuse is not stored."""
        if op.result_cid is not None:
            upload = await self.uploads.find_result(session_address, op.result_cid)
            if upload is None or not await self.uploads.hold(upload, op.job_id):
                raise Refused("result_cid names no live upload of this session", "result_cid", "unknown_result")
            outcome = await self._relay_settle(op, upload.cid, signer, same)
            if isinstance(outcome, OpDone):
                await self.uploads.attach(upload)
            return outcome
        view = self.jobs.would_accept(_settle_calldata(op, _ANY_CID), self.relayer)
        (answer,) = await read_many(self.jobs.rpc, [view], "rpc_internal")
        if isinstance(answer, Reverted):
            return RefusedByChain(decode_error(answer.data), answer.data)
        result = op.result if op.result is not None else b""
        key = result_key(op.job_id, result)
        async with self.containers.holding(key, op.job_id, result, signer, bounded=False) as holding:
            outcome = await self._relay_settle(op, holding.cid, signer, same)
            if isinstance(outcome, OpDone):
                holding.took_effect()
            elif isinstance(outcome, RefusedByChain):
                holding.was_refused()
        return outcome

    async def _relay_settle(self, op: SettleOp, cid: str, signer: bytes, same: bytes) -> Ended:
        relay = NewRelay(
            kind=RelayKind.SETTLE,
            subject=op.job_id,
            # One live settle of a signer and job. The content id is not signed: who copied the signature out of a
            # pending transaction could have another result mined first, from another account.
            dedupe=hashlib.sha256(b"settle" + op.job_id + signer).digest(),
            target=self.jobs.address,
            calldata=_settle_calldata(op, cid),
            priority=Priority.EXIT,
            content=hashlib.sha256(same + cid.encode()).digest(),
            signer=signer,
            gas_estimate=gas_estimate(RelayKind.SETTLE),
        )
        outcome = _ended(await self.relaying.relay(relay), _poll(op.job_id))
        return attrs.evolve(outcome, result_cid=cid) if isinstance(outcome, OpDone) else outcome

    async def _relay_exit(self, kind: RelayKind, job_id: bytes, calldata: bytes, signer: bytes, same: bytes) -> Ended:
        """No budget refuses it: it frees a client's money, and there are no more exits than claims."""
        relay = NewRelay(
            kind=kind,
            subject=job_id,
            dedupe=hashlib.sha256(same).digest(),
            target=self.jobs.address,
            calldata=calldata,
            priority=Priority.EXIT,
            signer=signer,
            gas_estimate=gas_estimate(kind),
        )
        return _ended(await self.relaying.relay(relay), _poll(job_id))

    async def _run_provider_op(
        self, kind: RelayKind, calldata: bytes, signer: bytes, provider_id: int, same: bytes
    ) -> Ended:
        subject = bytes(12) + signer
        admitted = await self.budgets.admit(kind, signer, subject, len(calldata))
        relay = NewRelay(
            kind=kind,
            subject=subject,
            dedupe=hashlib.sha256(same).digest(),
            target=self.providers.address,
            calldata=calldata,
            priority=Priority.OP,
            signer=signer,
            gas_estimate=admitted.spending.estimate,
            spending=admitted.spending,
        )
        return _ended(await self.relaying.relay(relay), f"GET /evm/providers/{provider_id}")


def _poll(job_id: bytes) -> str:
    return f"GET /evm/jobs/0x{job_id.hex()}"


def _settle_calldata(op: SettleOp, cid: str) -> bytes:
    return job_registry.settle(op.job_id, op.completion_tok, op.issued_at, cid, op.signature)


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
