"""POST /release: a job's payload key for the provider that holds its claim.

What comes first is what costs us least: the time, then the signature, and only then the node; the wrap is held against
the commitment before a key is tried on it. The answer is the payload key for the owner that the job names and never
the seed, so that a container that a stranger posted under an order of their own opens nothing.
"""

from typing import Final, Literal, TypeAlias

import attrs

from common import box
from common.box import PublicKey
from common.container import commitment
from common.derivation import data_key
from common.domains import Domains
from common.messages.escrow import Release
from common.quotes import job_id as job_id_of
from common.sealed_stream import SEED_WRAP_BYTES
from common.secp256k1 import recover
from coordinatord import metrics
from coordinatord.chain.job_registry import CLAIMED
from coordinatord.fields import BYTES32, UINT64, Base64, Coded, wire
from coordinatord.service.escrow.body_kinds import AnySignature, SealingKey
from coordinatord.service.escrow.claims import Claim, Claims
from coordinatord.service.escrow.custody import Custody
from coordinatord.service.escrow.key_material import wipe
from coordinatord.service.escrow.unminted import unminted
from coordinatord.service.posted_jobs import PostedJobs
from coordinatord.service.windows import ISSUED_WITHIN, Clock, is_fresh
from coordinatord.trouble import Retryable


@attrs.frozen(slots=True)
class ReleaseBody:
    job_id: bytes = wire(BYTES32, "the claimed job")
    seed_wrap: bytes = wire(Coded(Base64(SEED_WRAP_BYTES), "bad_container"), "the container's seed_wrap")
    ct_hash: bytes = wire(Coded(BYTES32, "bad_container"), "keccak256 of the container's ciphertext")
    response_pubkey: PublicKey = wire(SealingKey(), "the X25519 key that the answer is sealed to")
    issued_at: int = wire(UINT64, f"Unix seconds, within ±{ISSUED_WITHIN} of the coordinator's clock")
    signature: bytes = wire(AnySignature(), "the claiming provider wallet's Release signature")


@attrs.frozen(slots=True)
class Released:
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


Outcome: TypeAlias = Released | NotReleased

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

    async def release(self, body: ReleaseBody) -> Outcome:
        """Raises Retryable while the chain cannot be read, while the claim is not deep enough, and while there is no
        key."""
        outcome = await self._decide(body)
        metrics.escrow_releases.labels("released" if isinstance(outcome, Released) else outcome.reason).inc()
        return outcome

    async def _decide(self, body: ReleaseBody) -> Outcome:
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
        if found is None or job_id_of(found.posted.owner, c) != body.job_id:
            return NotReleased("wrap_mismatch", "seed_wrap and ct_hash do not reproduce the job's commitment")
        if await self.claims.provider_of(wallet) != job.provider_id:
            return _WRONG_WALLET
        if not await self.claims.is_deep(Claim(body.job_id, wallet, job.provider_id)):
            # A reorganisation could still give the job to another, and what was released stays released.
            raise Retryable("relay_unavailable", "the claim is not confirmed yet", "job_read", retry_after=1)
        return await self._sealed(body, found.posted.owner)

    async def _sealed(self, body: ReleaseBody, owner: bytes) -> Outcome:
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
        return Released(box.seal(body.response_pubkey, dek))
