"""POST /evm/ops: run one signed op of a provider, and wait for its receipt."""

import hashlib
from collections.abc import Mapping
from typing import Final, TypeAlias, assert_never

import attrs

from common.api import limits
from common.api.fields import BYTES32, SIGNATURE, UINT32, UINT64, Base64, Choice, HexUpTo, Text, body_field, read_object
from common.api.worked_order import ORDER_HASH, SETTLE_SIGNATURE
from common.artifacts import decode_error_name
from common.box import PublicKey
from common.cid import Cid
from common.domains import Domains
from common.eip712 import struct_hash
from common.messages.jobs import Claim, Fail, Settle
from common.messages.providers import RequestCapacity, SetIdentity
from common.refusal import Refused
from common.secp256k1 import recover_address
from coordinatord.api.book import leases_sql
from coordinatord.api.book.pending_offers import PendingOffers
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.files.files import Uploads
from coordinatord.api.files.files_sql import FileRow
from coordinatord.api.orders.bodies import MAX_CID_CHARACTERS, MAX_INLINE_BYTES
from coordinatord.api.provider_ops.shared_views import SharedViews
from coordinatord.base.clock import MAX_OP_SKEW_S, Clock, is_fresh
from coordinatord.base.outcomes import PredictedRefusal, Unauthorised
from coordinatord.chain.contracts import job_registry, provider_registry
from coordinatord.chain.contracts.job_registry import JobRegistry, PostedOrder
from coordinatord.chain.contracts.provider_registry import ProviderRegistry
from coordinatord.chain.relayer.budgets import GasBudgets
from coordinatord.chain.relayer.op_gas import gas_estimate
from coordinatord.chain.relayer.outbox_sql import NewRelay, Priority, QueuedRelay, RelayKind
from coordinatord.chain.relayer.relaying import NoReceipt, RefusedByChain, RelayBusy, Relaying, RelayMined
from coordinatord.chain.relayer.role import raise_if_role_lacking
from coordinatord.chain.rpc.views import Reverted
from coordinatord.storage.database.connections import Database
from coordinatord.storage.pins.containers import Containers, result_key

# Longest wait of an op for an earlier op of its job, such as a settle for its claim.
_MAX_WAIT_FOR_EARLIER_OP_S: Final = 60.0
# Errors of a simulated settle while its claim is not mined yet.
_CLAIM_MISSING_ERRORS: Final = frozenset({"NotClaimed", "UnknownJob"})
# Errors of a claim whose payment could not be collected.
_PAYMENT_ERRORS: Final = frozenset({"PaymentRefused", "PaymentShort", "TokenUnreadable"})
MAX_EVIDENCE_BYTES: Final = limits.MAX_EVIDENCE_BYTES
_SIGNATURE_TEXT = "the provider wallet's signature over the op's message"
_ISSUED_AT_TEXT = "signed time in Unix seconds, greater than in the last such op and at most 3600 s ahead"


@attrs.frozen(slots=True)
class ClaimOp:
    op: str = body_field(Choice(("claim",)), "`claim`: claim the job; the job registry collects the payment")
    job_id: bytes = body_field(BYTES32)
    issued_at: int = body_field(UINT64)
    signature: bytes = body_field(SIGNATURE, _SIGNATURE_TEXT)
    terms: bytes | None = body_field(
        BYTES32,
        "EIP-712 struct hash of the job's Order. If the job has other terms, the claim is answered with 409"
        " `UnknownJob`. Not signed",
        example=ORDER_HASH,
        optional=True,
    )


@attrs.frozen(slots=True)
class SettleOp:
    op: str = body_field(Choice(("settle",)), "`settle`: end the job with its result")
    job_id: bytes = body_field(BYTES32)
    completion_tok: int = body_field(UINT32, "number of output units to charge, at most the job's `units_out`")
    issued_at: int = body_field(UINT64)
    signature: bytes = body_field(SIGNATURE, _SIGNATURE_TEXT, example=SETTLE_SIGNATURE)
    result: bytes | None = body_field(Base64(MAX_INLINE_BYTES), optional=True)
    result_cid: str | None = body_field(
        Text(MAX_CID_CHARACTERS),
        "`svc.cid` of a `result` upload of this session's address, in place of `result`",
        optional=True,
    )


@attrs.frozen(slots=True)
class FailOp:
    op: str = body_field(Choice(("fail",)), "`fail`: end the job without a result; the owner gets the payment back")
    job_id: bytes = body_field(BYTES32)
    issued_at: int = body_field(UINT64)
    signature: bytes = body_field(SIGNATURE, _SIGNATURE_TEXT)


@attrs.frozen(slots=True)
class SetIdentityOp:
    op: str = body_field(Choice(("set_identity",)), "`set_identity`: publish the box key, and evidence")
    box_key: bytes = body_field(BYTES32)
    evidence: bytes = body_field(
        HexUpTo(MAX_EVIDENCE_BYTES), "evidence of identity, at most 32,768 bytes; `0x` for none", example="0x"
    )
    issued_at: int = body_field(UINT64, _ISSUED_AT_TEXT)
    signature: bytes = body_field(SIGNATURE, _SIGNATURE_TEXT)


@attrs.frozen(slots=True)
class RequestCapacityOp:
    op: str = body_field(Choice(("request_capacity",)), "`request_capacity`: request room for `n` jobs at a time")
    n: int = body_field(UINT32)
    issued_at: int = body_field(UINT64, _ISSUED_AT_TEXT)
    signature: bytes = body_field(SIGNATURE, _SIGNATURE_TEXT)


JobOp: TypeAlias = ClaimOp | SettleOp | FailOp
ProviderOp: TypeAlias = JobOp | SetIdentityOp | RequestCapacityOp

OP_CLASSES: Final[dict[str, type[ProviderOp]]] = {
    "claim": ClaimOp,
    "settle": SettleOp,
    "fail": FailOp,
    "set_identity": SetIdentityOp,
    "request_capacity": RequestCapacityOp,
}
_OP_NAME: Final = Choice(tuple(OP_CLASSES))


def read_op(body: Mapping[str, object]) -> ProviderOp:
    if body.get("op") is None:
        raise Refused("op is required", "op")
    op = read_object(OP_CLASSES[_OP_NAME.read(body["op"], "op")], body)
    if isinstance(op, SettleOp):
        _check_result(op)
    if isinstance(op, SetIdentityOp):
        try:
            PublicKey(op.box_key)
        except Refused as error:
            raise Refused(f"box_key: {error}", "box_key") from None
    return op


def _check_result(op: SettleOp) -> None:
    if op.result is None and op.result_cid is None:
        raise Refused("settle requires result or result_cid", "result", "result_required")
    if op.result is not None and op.result_cid is not None:
        raise Refused("settle must have either result or result_cid, not both", "result_cid", "result_ambiguous")
    if op.result == b"":
        raise Refused("result must not be empty", "result", "result_required")


# Placeholder content id for the simulation of a settle before its result is stored.
_PLACEHOLDER_CID = str(Cid("raw", hashlib.sha256(b"").digest()))


@attrs.frozen(slots=True)
class OpMined:
    relay: RelayMined
    result_cid: str | None = None


@attrs.frozen(slots=True)
class OpUnderWay:
    """Op without a receipt yet. `poll` is the route that shows the op's effect."""

    tx_hash: bytes
    poll: str


RelayedOutcome: TypeAlias = OpMined | RefusedByChain | RelayBusy | OpUnderWay
OpOutcome: TypeAlias = RelayedOutcome | Unauthorised | PredictedRefusal


@attrs.frozen(slots=True)
class _OpSigner:
    """Signer of an op. `request_key` consists of the signed content and the signer, so equal requests have equal keys.
    With `waits_for_receipt`, the caller waits for the op's receipt."""

    wallet: bytes
    provider_id: int
    request_key: bytes
    waits_for_receipt: bool
    # This wallet's claim of the job is not mined yet.
    claim_pending: bool = False

    @property
    def max_wait_s(self) -> float:
        return _MAX_WAIT_FOR_EARLIER_OP_S if self.claim_pending else 0.0


@attrs.frozen(slots=True)
class OpService:
    domains: Domains
    jobs: JobRegistry
    providers: ProviderRegistry
    posted_jobs: PostedJobs
    offers: PendingOffers
    relayer: bytes
    database: Database
    budgets: GasBudgets
    containers: Containers
    uploads: Uploads
    relaying: Relaying
    clock: Clock
    views: SharedViews

    async def run_op(self, op: ProviderOp, session_address: bytes, *, wait: bool = True) -> OpOutcome | QueuedRelay:
        """Run an op. The op's signature authorises it. `session_address` is only used to find the upload of
        `result_cid`.

        Without `wait`, an op of a job returns QueuedRelay once it is in the outbox.
        """
        digest, hash_of_struct = self._signed_digest(op)
        signer = recover_address(digest, op.signature)
        provider_id = await self.views.read_provider_id(self.providers, signer) if signer is not None else None
        if signer is None or provider_id is None:
            return Unauthorised(
                "invalid_op_signature", None, "the signature does not recover to a registered provider's wallet"
            )
        # The request key leaves out the signature, because the same op can have different valid signatures.
        op_signer = _OpSigner(signer, provider_id, op.op.encode() + signer + hash_of_struct, wait)
        match op:
            case ClaimOp() | SettleOp() | FailOp():
                if not is_fresh(op.issued_at, self.clock()):
                    return PredictedRefusal("StaleOp", f"issued_at is not within ±{MAX_OP_SKEW_S} seconds of now")
                return await self._run_job_op(op, op_signer, session_address)
            case SetIdentityOp():
                calldata = provider_registry.set_identity_calldata(op.box_key, op.evidence, op.issued_at, op.signature)
                return await self._run_provider_op(RelayKind.SET_IDENTITY, calldata, op_signer)
            case RequestCapacityOp():
                calldata = provider_registry.request_capacity_calldata(op.n, op.issued_at, op.signature)
                return await self._run_provider_op(RelayKind.REQUEST_CAPACITY, calldata, op_signer)
            case _:
                assert_never(op)

    def _signed_digest(self, op: ProviderOp) -> tuple[bytes, bytes]:
        """Return the digest that the provider signed, and the hash of the signed struct."""
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
        self, op: ClaimOp | SettleOp | FailOp, op_signer: _OpSigner, session_address: bytes
    ) -> OpOutcome | QueuedRelay:
        if isinstance(op, ClaimOp):
            return await self._claim(op, op_signer)
        upload = await self._find_upload(op, session_address) if isinstance(op, SettleOp) else None
        # A provider that works ahead may end a job before the job's post and claim are mined.
        op_signer = attrs.evolve(op_signer, claim_pending=await self.relaying.is_claiming(op_signer.wallet, op.job_id))
        known = await self.posted_jobs.indexed.get(op.job_id)
        pending = await self.offers.read_claimed_terms(op.job_id, op_signer.provider_id) if known is None else None
        job = known or pending or await self.posted_jobs.find(op.job_id)
        if job is None:
            return _unknown_job_refusal()
        match op:
            case SettleOp() if upload is not None:
                return await self._settle_uploaded(op, job.posted, upload, op_signer)
            case SettleOp():
                return await self._settle(op, job.posted, op_signer)
            case FailOp():
                calldata = job_registry.fail_calldata(job.posted, op.issued_at, op.signature)
                return await self._relay_exit(RelayKind.FAIL, op.job_id, calldata, op_signer)
            case _:
                assert_never(op)

    async def _claim(self, op: ClaimOp, op_signer: _OpSigner) -> OpOutcome | QueuedRelay:
        admitted = await self.budgets.admit(RelayKind.CLAIM, op_signer.wallet, op.job_id)
        known = await self.posted_jobs.indexed.get(op.job_id)
        pending = await self.offers.claim_offer(op.job_id, op_signer.provider_id) if known is None else None
        job = known or pending or await self.posted_jobs.find(op.job_id, "claim_simulate_read")
        if job is None:
            return _unknown_job_refusal()
        if op.terms is not None and op.terms != struct_hash(job.posted.order):
            # The owner posted another order under the same id, and the claim's signature would be valid for that order
            # too.
            return PredictedRefusal("UnknownJob", "the job was posted with other terms than `terms`")
        calldata = job_registry.claim_calldata(job, op.issued_at, op.signature)
        relay = NewRelay(
            kind=RelayKind.CLAIM,
            subject=op.job_id,
            dedupe=hashlib.sha256(op_signer.request_key).digest(),
            target=self.jobs.address,
            calldata=calldata,
            priority=Priority.OP,
            signer=op_signer.wallet,
            gas_estimate=admitted.spending.gas_estimate,
            spending=admitted.spending,
            # The claim of a pending job waits for the job's post. If the post fails, the claim is refused too.
            held_for_s=0.0 if pending is None else _MAX_WAIT_FOR_EARLIER_OP_S,
        )
        outcome = await self._relay_op(relay, op_signer)
        if isinstance(outcome, RefusedByChain) and outcome.name in _PAYMENT_ERRORS:
            async with self.database.connection() as connection:
                await leases_sql.hold_back_jobs(connection, [op.job_id])
        return outcome

    async def _find_upload(self, op: SettleOp, session_address: bytes) -> FileRow | None:
        """Return the upload that the op names, or None when the op contains its result."""
        if op.result_cid is None:
            return None
        upload = await self.uploads.find_result_upload(session_address, op.result_cid)
        if upload is None:
            raise _unknown_result_error()
        return upload

    async def _settle_uploaded(
        self, op: SettleOp, posted: PostedOrder, upload: FileRow, op_signer: _OpSigner
    ) -> OpOutcome | QueuedRelay:
        if not await self.uploads.hold(upload, op.job_id):
            raise _unknown_result_error()
        outcome = await self._relay_settle(op, posted, upload.cid, op_signer)
        if isinstance(outcome, OpMined):
            await self.uploads.attach(upload)
        return outcome

    async def _settle(self, op: SettleOp, posted: PostedOrder, op_signer: _OpSigner) -> OpOutcome | QueuedRelay:
        """Settle with the result in the op. Simulate the settle first, so that the result of a settle that the chain
        refuses is not stored."""
        view = self.jobs.simulation_view(_settle_calldata(op, posted, _PLACEHOLDER_CID), self.relayer)
        answer = await self.views.read_view(view)
        if isinstance(answer, Reverted):
            name = decode_error_name(answer.data)
            raise_if_role_lacking(name)
            if name not in _CLAIM_MISSING_ERRORS or not op_signer.claim_pending:
                return RefusedByChain(name, answer.data)
        result = op.result if op.result is not None else b""
        key = result_key(op.job_id, result)
        async with self.containers.hold_content(
            key, op.job_id, result, op_signer.wallet, check_budget=False
        ) as holding:
            outcome = await self._relay_settle(op, posted, holding.cid, op_signer)
            if isinstance(outcome, OpMined):
                holding.mark_effective()
            elif isinstance(outcome, RefusedByChain):
                holding.mark_refused()
        return outcome

    async def _relay_settle(
        self, op: SettleOp, posted: PostedOrder, cid: str, op_signer: _OpSigner
    ) -> RelayedOutcome | QueuedRelay:
        relay = NewRelay(
            kind=RelayKind.SETTLE,
            subject=op.job_id,
            # At most one pending settle per signer and job. The content id is not signed, so anyone who copies the
            # signature from a pending transaction could settle with another result first, from another account.
            dedupe=hashlib.sha256(b"settle" + op.job_id + op_signer.wallet).digest(),
            target=self.jobs.address,
            calldata=_settle_calldata(op, posted, cid),
            priority=Priority.EXIT,
            content=hashlib.sha256(op_signer.request_key + cid.encode()).digest(),
            signer=op_signer.wallet,
            gas_estimate=gas_estimate(RelayKind.SETTLE),
            held_for_s=op_signer.max_wait_s,
        )
        outcome = await self._relay_op(relay, op_signer)
        return attrs.evolve(outcome, result_cid=cid) if isinstance(outcome, OpMined) else outcome

    async def _relay_exit(
        self, kind: RelayKind, job_id: bytes, calldata: bytes, op_signer: _OpSigner
    ) -> RelayedOutcome | QueuedRelay:
        """Relay an op that ends a job. No budget limits such ops, because they release a client's payment and cannot
        outnumber claims."""
        relay = NewRelay(
            kind=kind,
            subject=job_id,
            dedupe=hashlib.sha256(op_signer.request_key).digest(),
            target=self.jobs.address,
            calldata=calldata,
            priority=Priority.EXIT,
            signer=op_signer.wallet,
            gas_estimate=gas_estimate(kind),
            held_for_s=op_signer.max_wait_s,
        )
        return await self._relay_op(relay, op_signer)

    async def _relay_op(self, relay: NewRelay, op_signer: _OpSigner) -> RelayedOutcome | QueuedRelay:
        """Relay an op of a job. Wait for its receipt unless the caller does not wait."""
        queued = await self.relaying.submit(relay)
        if not isinstance(queued, QueuedRelay):
            return queued
        if not op_signer.waits_for_receipt:
            return queued
        return _op_outcome(await self.relaying.wait(queued), f"GET /evm/jobs/0x{relay.subject.hex()}")

    async def _run_provider_op(self, kind: RelayKind, calldata: bytes, op_signer: _OpSigner) -> RelayedOutcome:
        subject = bytes(12) + op_signer.wallet
        admitted = await self.budgets.admit(kind, op_signer.wallet, subject, len(calldata))
        relay = NewRelay(
            kind=kind,
            subject=subject,
            dedupe=hashlib.sha256(op_signer.request_key).digest(),
            target=self.providers.address,
            calldata=calldata,
            priority=Priority.OP,
            signer=op_signer.wallet,
            gas_estimate=admitted.spending.gas_estimate,
            spending=admitted.spending,
        )
        return _op_outcome(await self.relaying.relay(relay), f"GET /evm/providers/{op_signer.provider_id}")


def _unknown_job_refusal() -> PredictedRefusal:
    return PredictedRefusal("UnknownJob", "the chain has no job with this job_id")


def _unknown_result_error() -> Refused:
    return Refused(
        "result_cid must name a live result upload of this session's address", "result_cid", "unknown_result"
    )


def _settle_calldata(op: SettleOp, posted: PostedOrder, cid: str) -> bytes:
    return job_registry.settle_calldata(posted, op.completion_tok, op.issued_at, cid, op.signature)


def _op_outcome(outcome: RelayMined | RefusedByChain | RelayBusy | NoReceipt, poll: str) -> RelayedOutcome:
    match outcome:
        case RelayMined():
            return OpMined(outcome)
        case NoReceipt():
            return OpUnderWay(outcome.tx_hash, poll)
        case RefusedByChain() | RelayBusy():
            return outcome
        case _:
            assert_never(outcome)
