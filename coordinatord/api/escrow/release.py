"""POST /release: give a job's payload key to the provider that holds its claim.

Cheap checks run first: the time, then the signature, then the chain. The seed wrap (the seed, sealed to an escrow key)
is compared with the job's commitment before any key is tried. The response never has the seed. It has the payload key
that is derived from the seed and the job's owner, so a stranger who posts a copied container as a job obtains another
key.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

import attrs

from common import box
from common.api.fields import BYTES32, UINT64, Base64, WithErrorCode, body_field
from common.box import PublicKey
from common.container import commitment
from common.domains import Domains
from common.key_derivation import data_key
from common.messages.escrow import Release
from common.quotes import derive_job_id
from common.sealed_stream import SEED_WRAP_BYTES
from common.secp256k1 import recover_address
from coordinatord.api.book.posted_jobs import PostedJobs
from coordinatord.api.escrow.custody import Custody, no_key_error
from coordinatord.api.escrow.handover import LenientSignature, SealingKey
from coordinatord.api.escrow.keys import wipe
from coordinatord.base.clock import MAX_OP_SKEW_S, Clock, is_fresh
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.job_registry import CLAIMED, ChainJob, JobRegistry, decode_job
from coordinatord.chain.contracts.provider_registry import ProviderRegistry, decode_provider_id
from coordinatord.chain.rpc.client import Rpc, decode_quantity
from coordinatord.chain.rpc.errors import RpcError
from coordinatord.chain.rpc.views import Reverted, View, decode_view, read_many, view_error
from coordinatord.storage.database.batched_reads import BatchedReads

T = TypeVar("T")


@attrs.frozen(slots=True)
class WalletClaim:
    """Claim of a job by the provider that operates this wallet."""

    job_id: bytes
    wallet: bytes
    provider_id: int


class ClaimReader:
    """Reads the claims of jobs from the chain. Concurrent reads share requests to the node.

    Claims are not read from the index, because the index may lag and a release cannot be undone. If `confirmations` is
    not 0, the claim must also exist that many blocks below the head.
    """

    def __init__(self, jobs: JobRegistry, providers: ProviderRegistry, confirmations: int) -> None:
        self._jobs = jobs
        self._providers = providers
        self._confirmations = confirmations
        self._job_reads: BatchedReads[bytes, ChainJob | None] = BatchedReads(jobs, _read_jobs)
        self._provider_id_reads: BatchedReads[bytes, int | None] = BatchedReads(providers, _read_provider_ids)
        self._confirmed_reads: BatchedReads[WalletClaim, bool] = BatchedReads(jobs.rpc, self._read_confirmed)

    async def read_job(self, job_id: bytes) -> ChainJob | None:
        """Return the job as of now. Raise Retryable with the code `job_read` when the node answers with an error."""
        return await self._job_reads.get(job_id)

    async def read_provider_id(self, wallet: bytes) -> int | None:
        """Return the provider id of a wallet. Raise Retryable with the code `provider_id_read` when the node answers
        with an error."""
        return await self._provider_id_reads.get(wallet)

    async def is_confirmed(self, claim: WalletClaim) -> bool:
        """Return True when the claim is at least as many blocks below the head as the operator requires."""
        return self._confirmations == 0 or await self._confirmed_reads.get(claim)

    async def _read_confirmed(self, rpc: Rpc, claims: list[WalletClaim]) -> dict[WalletClaim, bool]:
        block = await _read_head(rpc) - self._confirmations
        if block < 0:
            return dict.fromkeys(claims, False)
        jobs_then = [self._jobs.job_view(claim.job_id, hex(block)) for claim in claims]
        ids_then = [self._providers.provider_id_view(claim.wallet, hex(block)) for claim in claims]
        jobs = await _read_views(rpc, jobs_then, decode_job)
        ids = await _read_views(rpc, ids_then, decode_provider_id)
        return {
            claim: job is not None and job.state == CLAIMED and job.provider_id == claim.provider_id == provider_id
            for claim, job, provider_id in zip(claims, jobs, ids, strict=True)
        }


async def _read_jobs(registry: JobRegistry, job_ids: list[bytes]) -> dict[bytes, ChainJob | None]:
    views = [registry.job_view(job_id) for job_id in job_ids]
    return dict(zip(job_ids, await _read_views(registry.rpc, views, decode_job), strict=True))


async def _read_provider_ids(registry: ProviderRegistry, wallets: list[bytes]) -> dict[bytes, int | None]:
    views = [registry.provider_id_view(wallet) for wallet in wallets]
    return dict(zip(wallets, await _read_views(registry.rpc, views, decode_provider_id), strict=True))


async def _read_head(rpc: Rpc) -> int:
    try:
        return decode_quantity(await rpc.call("eth_blockNumber"))
    except RpcError as error:
        raise view_error(error, "job_read") from error


async def _read_views(rpc: Rpc, views: Sequence[View], decode: Callable[[bytes], T]) -> list[T]:
    # All views have the same error code.
    code = views[0].error_code
    values: list[T] = []
    for answer in await read_many(rpc, views, code):
        if isinstance(answer, Reverted):
            raise Retryable("relay_unavailable", "a contract read reverted; try again", code)
        values.append(decode_view(answer, decode, code))
    return values


@attrs.frozen(slots=True)
class ReleaseBody:
    job_id: bytes = body_field(BYTES32, "id of the claimed job")
    seed_wrap: bytes = body_field(WithErrorCode(Base64(SEED_WRAP_BYTES), "bad_container"))
    ct_hash: bytes = body_field(WithErrorCode(BYTES32, "bad_container"))
    response_pubkey: PublicKey = body_field(SealingKey())
    issued_at: int = body_field(UINT64)
    signature: bytes = body_field(LenientSignature(), "Release signature of the provider wallet that claimed the job")


@attrs.frozen(slots=True)
class GrantedRelease:
    dek_sealed: bytes


ReleaseRefusalReason = Literal[
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
    reason: ReleaseRefusalReason
    message: str


ReleaseOutcome: TypeAlias = GrantedRelease | NotReleased

_FAIL_SOON_ADVICE: Final = "fail the job within 300 seconds of its claim"
_WRONG_WALLET: Final = NotReleased("wrong_wallet", "the wallet that claimed the job did not make this signature")


@attrs.frozen(slots=True)
class ReleaseService:
    domains: Domains
    chain_id: int
    registry: bytes
    custody: Custody
    claim_reader: ClaimReader
    posted_jobs: PostedJobs
    clock: Clock

    async def release(self, body: ReleaseBody) -> ReleaseOutcome:
        """Return the sealed payload key, or the refusal. Raise Retryable if the chain cannot be read, the claim is not
        confirmed, or the escrow has no key yet."""
        if not is_fresh(body.issued_at, self.clock()):
            return NotReleased("stale_issued_at", f"issued_at is not within ±{MAX_OP_SKEW_S} seconds of now")
        c = commitment(body.seed_wrap, body.ct_hash)
        signed = Release(body.job_id, body.seed_wrap, body.ct_hash, body.response_pubkey.raw, body.issued_at)
        wallet = recover_address(self.domains.escrow.digest(signed), body.signature)
        if wallet is None:
            return _WRONG_WALLET
        job = await self.claim_reader.read_job(body.job_id)
        if job is None:
            return NotReleased("no_claim", "the chain has no job with this job_id")
        if job.state != CLAIMED:
            return NotReleased("not_claimed", "the job is not claimed")
        # The job id is a hash of owner and commitment, so an owner that matches the id is correct, even if it was read
        # from an unverified log.
        found = await self.posted_jobs.find(body.job_id)
        if found is None or derive_job_id(found.posted.owner, c) != body.job_id:
            return NotReleased("wrap_mismatch", "seed_wrap and ct_hash do not reproduce the job's commitment")
        if await self.claim_reader.read_provider_id(wallet) != job.provider_id:
            return _WRONG_WALLET
        if not await self.claim_reader.is_confirmed(WalletClaim(body.job_id, wallet, job.provider_id)):
            # A reorg could give the job to another provider, and a release cannot be undone.
            raise Retryable("relay_unavailable", "the claim is not confirmed yet; try again", "job_read", retry_after=1)
        return await self._seal_data_key(body, found.posted.owner)

    async def _seal_data_key(self, body: ReleaseBody, owner: bytes) -> ReleaseOutcome:
        if self.custody.current_key() is None:
            raise no_key_error()
        seed = await self.custody.open_wrap(body.seed_wrap)
        if seed is None:
            if await self.custody.has_lost_keys():
                return NotReleased(
                    "escrow_key_lost", f"the escrow has lost the key that this job is sealed to; {_FAIL_SOON_ADVICE}"
                )
            return NotReleased("unseal_failed", f"no key of this escrow opens the wrap; {_FAIL_SOON_ADVICE}")
        try:
            dek = data_key(seed, self.chain_id, self.registry, owner)
        finally:
            wipe(seed)
        return GrantedRelease(box.seal(body.response_pubkey, dek))
