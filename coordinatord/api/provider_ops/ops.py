"""POST /evm/ops: run one signed op of a provider, up to its receipt."""

import hashlib
from collections.abc import Mapping
from typing import Final, TypeAlias, assert_never

import attrs

from common.api import limits
from common.api.fields import BYTES32, SIGNATURE, UINT32, UINT64, Base64, Choice, HexUpTo, Text, read_object, wire
from common.api.worked_order import ORDER_HASH, SETTLE_SIGNATURE
from common.artifacts import decode_error
from common.box import PublicKey
from common.cid import Cid
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.jobs import Claim, Fail, Settle
from common.messages.providers import RequestCapacity, SetIdentity
from common.refusal import Refused
from common.secp256k1 import recover
from coordinatord.api.book import leases_sql
from coordinatord.api.book.pending_offers import PendingOffers
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.files.files import Uploads
from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.orders.bodies import CID_CHARACTERS, INLINE_BYTES
from coordinatord.api.provider_ops.shared_views import SharedViews
from coordinatord.base.clock import MAX_OP_SKEW_S, Clock, is_fresh
from coordinatord.base.outcomes import NotSigned, WouldRefuse
from coordinatord.chain.contracts import job_registry, provider_registry
from coordinatord.chain.contracts.job_registry import JobRegistry, PostedOrder
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, Queued, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.chain.relayer.role import require_role
from coordinatord.chain.rpc.views import Reverted
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins.containers import Containers, result_key

# Longest wait of an op for the op that it builds on.
_MAX_HOLD_S: Final = 60.0
# Errors of a settle while its claim is under way.
_UNCLAIMED: Final = frozenset({"NotClaimed", "UnknownJob"})
_UNPAID: Final = frozenset({"PaymentRefused", "PaymentShort", "TokenUnreadable"})
MAX_EVIDENCE_BYTES: Final = limits.EVIDENCE_BYTES
_SIGNED = "the provider wallet's signature over the op's message"
_INCREASING = "time that is signed along, in Unix seconds: greater than that of the last one, at most 3600 s ahead"


@attrs.frozen(slots=True)
class ClaimOp:
    op: str = wire(Choice(("claim",)), "`claim`: take the job; its payment goes into the registry")
    job_id: bytes = wire(BYTES32)
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)
    terms: bytes | None = wire(
        BYTES32,
        "EIP-712 struct hash of the job's Order; the claim is relayed for these terms only, else 409 `UnknownJob`."
        " Not signed",
        example=ORDER_HASH,
        optional=True,
    )


@attrs.frozen(slots=True)
class SettleOp:
    op: str = wire(Choice(("settle",)), "`settle`: end the job with its result")
    job_id: bytes = wire(BYTES32)
    completion_tok: int = wire(UINT32, "output units that are charged for, at most the job's `units_out`")
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED, example=SETTLE_SIGNATURE)
    result: bytes | None = wire(Base64(INLINE_BYTES), optional=True)
    result_cid: str | None = wire(
        Text(CID_CHARACTERS),
        "`svc.cid` of a `result` upload of this session's address, in place of `result`",
        optional=True,
    )


@attrs.frozen(slots=True)
class FailOp:
    op: str = wire(Choice(("fail",)), "`fail`: end the job without a result; its payment goes back")
    job_id: bytes = wire(BYTES32)
    issued_at: int = wire(UINT64)
    signature: bytes = wire(SIGNATURE, _SIGNED)


@attrs.frozen(slots=True)
class SetIdentityOp:
    op: str = wire(Choice(("set_identity",)), "`set_identity`: publish the box key, and evidence")
    box_key: bytes = wire(BYTES32)
    evidence: bytes = wire(
        HexUpTo(MAX_EVIDENCE_BYTES), "evidence of identity, at most 32,768 bytes; `0x` for none", example="0x"
    )
    issued_at: int = wire(UINT64, _INCREASING)
    signature: bytes = wire(SIGNATURE, _SIGNED)


@attrs.frozen(slots=True)
class RequestCapacityOp:
    op: str = wire(Choice(("request_capacity",)), "`request_capacity`: ask for jobs at a time")
    n: int = wire(UINT32)
    issued_at: int = wire(UINT64, _INCREASING)
    signature: bytes = wire(SIGNATURE, _SIGNED)


JobOp: TypeAlias = ClaimOp | SettleOp | FailOp
ProviderOp: TypeAlias = JobOp | SetIdentityOp | RequestCapacityOp

OPS: Final[dict[str, type[ProviderOp]]] = {
    "claim": ClaimOp,
    "settle": SettleOp,
    "fail": FailOp,
    "set_identity": SetIdentityOp,
    "request_capacity": RequestCapacityOp,
}
_OP: Final = Choice(tuple(OPS))


def read_op(body: Mapping[str, object]) -> ProviderOp:
    if body.get("op") is None:
        raise Refused("op is required", "op")
    op = read_object(OPS[_OP.read(body["op"], "op")], body)
    if isinstance(op, SettleOp):
        _check_result(op)
    if isinstance(op, SetIdentityOp):
        try:
            PublicKey(op.box_key)
        except Refused as weak:
            raise Refused(f"box_key: {weak}", "box_key") from None
    return op


def _check_result(op: SettleOp) -> None:
    if op.result is None and op.result_cid is None:
        raise Refused("settle needs result or result_cid", "result", "result_required")
    if op.result is not None and op.result_cid is not None:
        raise Refused("result and result_cid exclude each other", "result_cid", "result_ambiguous")
    if op.result == b"":
        raise Refused("result must not be empty", "result", "result_required")


# Placeholder content id for the simulation of a settle before its result is stored.
_ANY_CID = str(Cid("raw", hashlib.sha256(b"").digest()))


@attrs.frozen(slots=True)
class OpMined:
    mined: RelayMined
    result_cid: str | None = None


@attrs.frozen(slots=True)
class OpUnderWay:
    """No receipt yet. `poll` is the route to poll."""

    tx_hash: bytes
    poll: str


Relayed: TypeAlias = OpMined | RefusedByChain | RelayBusy | OpUnderWay
OpOutcome: TypeAlias = Relayed | NotSigned | WouldRefuse


@attrs.frozen(slots=True)
class _SignedBy:
    """Author of an op. `same` identifies equal requests: the signed content and its signer. With `wait`, the caller
    waits for the op's block."""

    wallet: bytes
    provider_id: int
    same: bytes
    wait: bool
    # A claim of the job by this wallet is under way.
    claims: bool = False

    @property
    def held_for(self) -> float:
        return _MAX_HOLD_S if self.claims else 0.0


@attrs.frozen(slots=True)
class Ops:
    domains: Domains
    jobs: JobRegistry
    providers: ProviderRegistry
    posted: PostedJobs
    offers: PendingOffers
    relayer: bytes
    database: Database
    budgets: GasBudgets
    containers: Containers
    uploads: Uploads
    relaying: Relaying
    clock: Clock
    views: SharedViews

    async def run(self, op: ProviderOp, session_address: bytes, *, wait: bool = True) -> OpOutcome | Queued:
        """Run an op. Its signature is the authority. `session_address` only matters for `result_cid`.

        Without `wait`, an op of a job returns `Queued` once it is in the outbox.
        """
        digest, hash_of_struct = self._signed(op)
        signer = recover(digest, op.signature)
        provider_id = await self.views.provider_of(self.providers, signer) if signer is not None else None
        if signer is None or provider_id is None:
            return NotSigned(
                "invalid_op_signature", None, "the signature does not recover to a registered provider's wallet"
            )
        # The signature's bytes are left out, because the same op can be signed with different bytes.
        by = _SignedBy(signer, provider_id, op.op.encode() + signer + hash_of_struct, wait)
        match op:
            case ClaimOp() | SettleOp() | FailOp():
                if not is_fresh(op.issued_at, self.clock()):
                    return WouldRefuse("StaleOp", f"issued_at is not within ±{MAX_OP_SKEW_S} seconds of now")
                return await self._run_job_op(op, by, session_address)
            case SetIdentityOp():
                calldata = provider_registry.set_identity(op.box_key, op.evidence, op.issued_at, op.signature)
                return await self._run_provider_op(RelayKind.SET_IDENTITY, calldata, by)
            case RequestCapacityOp():
                calldata = provider_registry.request_capacity(op.n, op.issued_at, op.signature)
                return await self._run_provider_op(RelayKind.REQUEST_CAPACITY, calldata, by)
            case _:
                assert_never(op)

    def _signed(self, op: ProviderOp) -> tuple[bytes, bytes]:
        """Return the digest that the provider signed, and the hash of the struct."""
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
        self, op: ClaimOp | SettleOp | FailOp, by: _SignedBy, session_address: bytes
    ) -> OpOutcome | Queued:
        if isinstance(op, ClaimOp):
            return await self._claim(op, by)
        upload = await self._upload(op, session_address) if isinstance(op, SettleOp) else None
        # A provider that works ahead may end a job while its post and claim are still under way.
        by = attrs.evolve(by, claims=await self.relaying.claims(by.wallet, op.job_id))
        known = await self.posted.indexed.get(op.job_id)
        pending = await self.offers.claimed_by(op.job_id, by.provider_id) if known is None else None
        job = known or pending or await self.posted.find(op.job_id)
        if job is None:
            return _unknown_job()
        match op:
            case SettleOp() if upload is not None:
                return await self._settle_uploaded(op, job.posted, upload, by)
            case SettleOp():
                return await self._settle(op, job.posted, by)
            case FailOp():
                calldata = job_registry.fail(job.posted, op.issued_at, op.signature)
                return await self._relay_exit(RelayKind.FAIL, op.job_id, calldata, by)
            case _:
                assert_never(op)

    async def _claim(self, op: ClaimOp, by: _SignedBy) -> OpOutcome | Queued:
        admitted = await self.budgets.admit(RelayKind.CLAIM, by.wallet, op.job_id)
        known = await self.posted.indexed.get(op.job_id)
        pending = await self.offers.claimed(op.job_id, by.provider_id) if known is None else None
        job = known or pending or await self.posted.find(op.job_id, "claim_simulate_read")
        if job is None:
            return _unknown_job()
        if op.terms is not None and op.terms != struct_hash(job.posted.order):
            # The owner posted another order under the same id, and the claim's signature would be valid for that order
            # too.
            return WouldRefuse("UnknownJob", "the job was posted on other terms")
        calldata = job_registry.claim(job, op.issued_at, op.signature)
        relay = NewRelay(
            kind=RelayKind.CLAIM,
            subject=op.job_id,
            dedupe=hashlib.sha256(by.same).digest(),
            target=self.jobs.address,
            calldata=calldata,
            priority=Priority.OP,
            signer=by.wallet,
            gas_estimate=admitted.spending.estimate,
            spending=admitted.spending,
            # A claim that waits for its post is refused together with the post.
            held_for=0.0 if pending is None else _MAX_HOLD_S,
        )
        outcome = await self._relay(relay, by)
        if isinstance(outcome, RefusedByChain) and outcome.name in _UNPAID:
            async with self.database.connection() as connection:
                await leases_sql.hold_back(connection, [op.job_id])
        return outcome

    async def _upload(self, op: SettleOp, session_address: bytes) -> FileRow | None:
        """Return the upload that the op names, or None when the op contains its result."""
        if op.result_cid is None:
            return None
        upload = await self.uploads.find_result(session_address, op.result_cid)
        if upload is None:
            raise _unknown_result()
        return upload

    async def _settle_uploaded(
        self, op: SettleOp, posted: PostedOrder, upload: FileRow, by: _SignedBy
    ) -> OpOutcome | Queued:
        if not await self.uploads.hold(upload, op.job_id):
            raise _unknown_result()
        outcome = await self._relay_settle(op, posted, upload.cid, by)
        if isinstance(outcome, OpMined):
            await self.uploads.attach(upload)
        return outcome

    async def _settle(self, op: SettleOp, posted: PostedOrder, by: _SignedBy) -> OpOutcome | Queued:
        """Settle with the result in the op. Simulate first, so that a result that the chain refuses is not stored."""
        view = self.jobs.would_accept(_settle_calldata(op, posted, _ANY_CID), self.relayer)
        answer = await self.views.get(view)
        if isinstance(answer, Reverted):
            name = decode_error(answer.data)
            require_role(name)
            if name not in _UNCLAIMED or not by.claims:
                return RefusedByChain(name, answer.data)
        result = op.result if op.result is not None else b""
        key = result_key(op.job_id, result)
        async with self.containers.holding(key, op.job_id, result, by.wallet, bounded=False) as holding:
            outcome = await self._relay_settle(op, posted, holding.cid, by)
            if isinstance(outcome, OpMined):
                holding.took_effect()
            elif isinstance(outcome, RefusedByChain):
                holding.was_refused()
        return outcome

    async def _relay_settle(self, op: SettleOp, posted: PostedOrder, cid: str, by: _SignedBy) -> Relayed | Queued:
        relay = NewRelay(
            kind=RelayKind.SETTLE,
            subject=op.job_id,
            # Only one live settle per signer and job. The content id is not signed: anyone who copies the signature
            # from a pending transaction could get another result mined first, from another account.
            dedupe=hashlib.sha256(b"settle" + op.job_id + by.wallet).digest(),
            target=self.jobs.address,
            calldata=_settle_calldata(op, posted, cid),
            priority=Priority.EXIT,
            content=hashlib.sha256(by.same + cid.encode()).digest(),
            signer=by.wallet,
            gas_estimate=gas_estimate(RelayKind.SETTLE),
            held_for=by.held_for,
        )
        outcome = await self._relay(relay, by)
        return attrs.evolve(outcome, result_cid=cid) if isinstance(outcome, OpMined) else outcome

    async def _relay_exit(self, kind: RelayKind, job_id: bytes, calldata: bytes, by: _SignedBy) -> Relayed | Queued:
        """Relay a fail or a settle. No budget refuses it: it frees a client's money, and exits cannot outnumber
        claims."""
        relay = NewRelay(
            kind=kind,
            subject=job_id,
            dedupe=hashlib.sha256(by.same).digest(),
            target=self.jobs.address,
            calldata=calldata,
            priority=Priority.EXIT,
            signer=by.wallet,
            gas_estimate=gas_estimate(kind),
            held_for=by.held_for,
        )
        return await self._relay(relay, by)

    async def _relay(self, relay: NewRelay, by: _SignedBy) -> Relayed | Queued:
        """Relay an op of a job."""
        queued = await self.relaying.submit(relay)
        if not isinstance(queued, Queued):
            return queued
        if not by.wait:
            return queued
        return _ended(await self.relaying.wait(queued), f"GET /evm/jobs/0x{relay.subject.hex()}")

    async def _run_provider_op(self, kind: RelayKind, calldata: bytes, by: _SignedBy) -> Relayed:
        subject = bytes(12) + by.wallet
        admitted = await self.budgets.admit(kind, by.wallet, subject, len(calldata))
        relay = NewRelay(
            kind=kind,
            subject=subject,
            dedupe=hashlib.sha256(by.same).digest(),
            target=self.providers.address,
            calldata=calldata,
            priority=Priority.OP,
            signer=by.wallet,
            gas_estimate=admitted.spending.estimate,
            spending=admitted.spending,
        )
        return _ended(await self.relaying.relay(relay), f"GET /evm/providers/{by.provider_id}")


def _unknown_job() -> WouldRefuse:
    return WouldRefuse("UnknownJob", "the chain has no such job")


def _unknown_result() -> Refused:
    return Refused("result_cid names no live upload of this session", "result_cid", "unknown_result")


def _settle_calldata(op: SettleOp, posted: PostedOrder, cid: str) -> bytes:
    return job_registry.settle(posted, op.completion_tok, op.issued_at, cid, op.signature)


def _ended(outcome: RelayMined | RefusedByChain | RelayBusy | NoReceipt, poll: str) -> Relayed:
    match outcome:
        case RelayMined():
            return OpMined(outcome)
        case NoReceipt():
            return OpUnderWay(outcome.tx_hash, poll)
        case RefusedByChain() | RelayBusy():
            return outcome
        case _:
            assert_never(outcome)
