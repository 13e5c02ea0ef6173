"""POST /release: a job's payload key for the provider that holds its claim.

What comes first is what costs us least: the time, then the signature, and only then the node; the wrap is held against
the commitment before a key is tried on it. The answer is the payload key for the owner that the job names and never
the seed, so that a container that a stranger posted under an order of their own opens nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

import attrs

from common import box
from common.api.fields import BYTES32, UINT64, Base64, Coded, wire
from common.box import PublicKey
from common.container import commitment
from common.domains import Domains
from common.key_derivation import data_key
from common.messages.escrow import Release
from common.quotes import derive_job_id
from common.sealed_stream import SEED_WRAP_BYTES
from common.secp256k1 import recover
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.escrow.custody import Custody, unminted
from coordinatord.api.escrow.handover import AnySignature, SealingKey
from coordinatord.api.escrow.keys import wipe
from coordinatord.base import metrics
from coordinatord.base.clock import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import CLAIMED, ChainJob, JobRegistry, read_job
from coordinatord.chain.contracts.provider_registry import ProviderRegistry, read_provider_id
from coordinatord.chain.rpc.client import Rpc, quantity
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import Reverted, View, decoded, read_many, unreadable
from coordinatord.storage.database.batched_reads import BatchedReads

T = TypeVar("T")


@attrs.frozen(slots=True)
class ClaimHolder:
    """The claim of a job by the provider that this wallet operates."""

    job_id: bytes
    wallet: bytes
    provider_id: int


class Claims:
    """Claim holders of jobs, read from the chain; reads that wait for one another go to the node as one request.

    The chain decides, not the index: a release cannot be taken back, and the index may trail. With confirmations the
    claim is looked up a second time, that many blocks below the head."""

    def __init__(self, jobs: JobRegistry, providers: ProviderRegistry, confirmations: int) -> None:
        self._jobs = jobs
        self._providers = providers
        self._confirmations = confirmations
        self._job_reads: BatchedReads[bytes, ChainJob | None] = BatchedReads(jobs, _read_jobs)
        self._wallet_reads: BatchedReads[bytes, int | None] = BatchedReads(providers, _read_wallets)
        self._deep_reads: BatchedReads[ClaimHolder, bool] = BatchedReads(jobs.rpc, self._read_depth)

    async def job(self, job_id: bytes) -> ChainJob | None:
        """The job as it is now; Retryable with `job_read` when the node answers with an error."""
        return await self._job_reads.get(job_id)

    async def provider_of(self, wallet: bytes) -> int | None:
        """The provider that the wallet is registered for; Retryable with `provider_id_read`."""
        return await self._wallet_reads.get(wallet)

    async def is_deep(self, claim: ClaimHolder) -> bool:
        """True when the claim stands as many blocks below the head as the operator wants to see."""
        return self._confirmations == 0 or await self._deep_reads.get(claim)

    async def _read_depth(self, rpc: Rpc, claims: list[ClaimHolder]) -> dict[ClaimHolder, bool]:
        block = await _head(rpc) - self._confirmations
        if block < 0:
            return dict.fromkeys(claims, False)
        jobs_then = [self._jobs.job_view(claim.job_id, hex(block)) for claim in claims]
        ids_then = [self._providers.provider_id_view(claim.wallet, hex(block)) for claim in claims]
        jobs = await _read_views(rpc, jobs_then, read_job)
        ids = await _read_views(rpc, ids_then, read_provider_id)
        return {
            claim: job is not None and job.state == CLAIMED and job.provider_id == claim.provider_id == provider_id
            for claim, job, provider_id in zip(claims, jobs, ids, strict=True)
        }


async def _read_jobs(registry: JobRegistry, job_ids: list[bytes]) -> dict[bytes, ChainJob | None]:
    views = [registry.job_view(job_id) for job_id in job_ids]
    return dict(zip(job_ids, await _read_views(registry.rpc, views, read_job), strict=True))


async def _read_wallets(registry: ProviderRegistry, wallets: list[bytes]) -> dict[bytes, int | None]:
    views = [registry.provider_id_view(wallet) for wallet in wallets]
    return dict(zip(wallets, await _read_views(registry.rpc, views, read_provider_id), strict=True))


async def _head(rpc: Rpc) -> int:
    try:
        return quantity(await rpc.call("eth_blockNumber"))
    except RpcError as error:
        raise unreadable(error, "job_read") from error


async def _read_views(rpc: Rpc, views: Sequence[View], decode: Callable[[bytes], T]) -> list[T]:
    code = views[0].code  # that of all
    values: list[T] = []
    for answer in await read_many(rpc, views, code):
        if isinstance(answer, Reverted):
            raise Retryable("relay_unavailable", "the chain refuses a read", code)
        values.append(decoded(answer, decode, code))
    return values


@attrs.frozen(slots=True)
class ReleaseBody:
    job_id: bytes = wire(BYTES32, "id of the claimed job")
    seed_wrap: bytes = wire(Coded(Base64(SEED_WRAP_BYTES), "bad_container"))
    ct_hash: bytes = wire(Coded(BYTES32, "bad_container"))
    response_pubkey: PublicKey = wire(SealingKey())
    issued_at: int = wire(UINT64)
    signature: bytes = wire(AnySignature(), "the claiming provider wallet's Release signature")


@attrs.frozen(slots=True)
class GrantedRelease:
    dek_sealed: bytes


Reason = Literal[
    "stale_issued_at",
    "wrong_wallet",
    "no_claim",
    "not_claimed",
    "wrap_mismatch",
    "unseal_failed",
    "escrow_key_lost",
]


@attrs.frozen(slots=True)
class NotReleased:
    reason: Reason
    message: str


ReleaseOutcome: TypeAlias = GrantedRelease | NotReleased

_FAIL_SOON: Final = "fail the job within 300 seconds of its claim"
_WRONG_WALLET: Final = NotReleased("wrong_wallet", "the signature is not of the wallet that claimed the job")


@attrs.frozen(slots=True)
class Releases:
    domains: Domains
    chain_id: int
    registry: bytes
    custody: Custody
    claims: Claims
    posted: PostedJobs
    clock: Clock

    async def release(self, body: ReleaseBody) -> ReleaseOutcome:
        """Raises Retryable while the chain cannot be read, while the claim is not deep enough, and while there is no
        key."""
        outcome = await self._decide(body)
        metrics.escrow_releases.labels("released" if isinstance(outcome, GrantedRelease) else outcome.reason).inc()
        return outcome

    async def _decide(self, body: ReleaseBody) -> ReleaseOutcome:
        if not is_fresh(body.issued_at, self.clock()):
            return NotReleased("stale_issued_at", f"issued_at is not within ±{ISSUED_WITHIN} seconds of now")
        c = commitment(body.seed_wrap, body.ct_hash)
        signed = Release(body.job_id, body.seed_wrap, body.ct_hash, body.response_pubkey.raw, body.issued_at)
        wallet = recover(self.domains.escrow.digest(signed), body.signature)
        if wallet is None:
            return _WRONG_WALLET
        job = await self.claims.job(body.job_id)
        if job is None:
            return NotReleased("no_claim", "the chain has no such job")
        if job.state != CLAIMED:
            return NotReleased("not_claimed", "the job is not claimed")
        # The job's id is a hash over owner and commitment: an owner from anywhere that fits is the owner.
        found = await self.posted.find(body.job_id)
        if found is None or derive_job_id(found.posted.owner, c) != body.job_id:
            return NotReleased("wrap_mismatch", "seed_wrap and ct_hash do not reproduce the job's commitment")
        if await self.claims.provider_of(wallet) != job.provider_id:
            return _WRONG_WALLET
        if not await self.claims.is_deep(ClaimHolder(body.job_id, wallet, job.provider_id)):
            # A reorganisation could still give the job to another, and what was released stays released.
            raise Retryable("relay_unavailable", "the claim is not confirmed yet", "job_read", retry_after=1)
        return await self._sealed(body, found.posted.owner)

    async def _sealed(self, body: ReleaseBody, owner: bytes) -> ReleaseOutcome:
        if self.custody.announced() is None:
            raise unminted()
        seed = await self.custody.open(body.seed_wrap)
        if seed is None:
            if await self.custody.has_lost_keys():
                return NotReleased("escrow_key_lost", f"sealed to a key that no instance holds; {_FAIL_SOON}")
            return NotReleased("unseal_failed", f"no key of this escrow opens the wrap; {_FAIL_SOON}")
        try:
            dek = data_key(seed, self.chain_id, self.registry, owner)
        finally:
            wipe(seed)
        return GrantedRelease(box.seal(body.response_pubkey, dek))
