"""Open a claimed job: fetch its payload, check the commitment, decrypt it and compare it with the order."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import attrs
import httpx
import trio

from common.address_book import AddressBook
from common.box import SecretKey, open_sealed
from common.container import ContainerCommitment, Opener
from svcd.base.clock import Clock
from svcd.base.end_reasons import WorkFailed
from svcd.base.errors import Unavailable
from svcd.base.timings import Timings
from svcd.config import ModelConfig
from svcd.coordinator.chain import ChainReader, Claimed, Contradicted, NotClaimed
from svcd.coordinator.client import Coordinator
from svcd.coordinator.op_signer import OpSigner
from svcd.coordinator.outcomes import CoordinatorRefusal, ReleasedKey
from svcd.journal.held_job import ClaimedJob, OpenedJob
from svcd.payload.gateway import PayloadGateways
from svcd.payload.opening import DelegationCheck, build_work, check_commitment, open_envelope
from svcd.payload.spool import Spool
from svcd.stages.drain import Drain
from svcd.stages.pipeline import Pipeline

T = TypeVar("T")


# If the escrow releases no key, svcd must send a fail within 300 seconds of the claim. Reserve half a minute for this.
_OPEN_TIMEOUT_S: Final = 270.0
_MIN_OPEN_TIMEOUT_S: Final = 30.0  # for jobs that are recovered after a restart with less time left
_DEK_BYTES: Final = 32


# Codes after which a retry may succeed: after a reorg, the coordinator rebroadcasts the post and the claim, and after a
# stale `issued_at`, the next response corrects svcd's clock.
_RETRIED_CODES: Final = frozenset({"not_claimed", "no_claim", "stale_issued_at"})
_RETRY_INTERVAL_S: Final = 2.0
_MAX_INLINE_BYTES: Final = 32 * 1024  # a smaller container is read faster than a thread starts


@attrs.frozen(slots=True, eq=False)
class PayloadOpener:
    coordinator: Coordinator
    signer: OpSigner
    clock: Clock
    address_book: AddressBook
    provider_id: int
    box_secret: SecretKey | None
    gateways: PayloadGateways
    models: Mapping[str, ModelConfig]
    spool_directory: Path
    max_container_bytes: int
    timings: Timings
    pipeline: Pipeline
    drain: Drain
    chain: ChainReader | None = None

    async def step(self, held: ClaimedJob) -> None:
        model = self.models.get(held.model)
        if model is None:
            raise WorkFailed("unservable", f"the model {held.model!r} is no longer configured")
        if held.job.designated not in (0, self.provider_id):
            raise WorkFailed("not_our_bid", f"the job is designated to provider {held.job.designated}")
        margin = self.timings.margin(model.margin_seconds)
        deadline = held.window_ends_at - margin

        # A job with answers from before a restart needs only a settle. The margin is the time for two transactions, and
        # a settle needs one.
        open_by = held.window_ends_at - margin / 2 if await self._has_stored_answers(held) else deadline
        if trio.current_time() >= open_by:
            raise WorkFailed(
                "claim_expired" if held.is_recovered else "deadline_wait", "no time is left to run the job"
            )
        with self.drain.cancellable():
            # A job that runs ahead is not on the chain yet, but `OfferChecker` has checked its signatures.
            if self.chain is not None and (held.pending_claim is None or held.pending_claim.is_confirmed):
                await self._wait_for_claim(self.chain, held, open_by)
            work = await self._open_work(held, model, deadline, open_by)
        await self.pipeline.to_run[held.model].send(held.window_ends_at, work)

    async def _has_stored_answers(self, held: ClaimedJob) -> bool:
        return held.is_recovered and bool(await self.pipeline.journal.read_items(held.job.job_id))

    async def _wait_for_claim(self, chain: ChainReader, held: ClaimedJob, open_by: float) -> None:
        """Wait until the node confirms the claim, payment and terms that the coordinator reported.

        Retry an unreachable or lagging node as long as a fail can still be sent in time.
        """
        until = self._open_deadline(held, open_by)
        while True:
            try:
                with trio.fail_at(until):
                    claim_status = await chain.claim_status(held.job)
            except trio.TooSlowError:
                raise WorkFailed("deadline_wait", "the node did not confirm the claim in time") from None
            except Unavailable as unavailable:
                failure = WorkFailed("deadline_wait", str(unavailable))
            else:
                match claim_status:
                    case Claimed():
                        return
                    case Contradicted(detail=detail):
                        raise WorkFailed("unservable", f"the chain contradicts the coordinator: {detail}")
                    case NotClaimed(detail=detail):
                        failure = WorkFailed("not_claimed", f"the claim is not on the chain: {detail}")
            if trio.current_time() + _RETRY_INTERVAL_S >= until:
                raise failure
            await trio.sleep(_RETRY_INTERVAL_S)

    def _open_deadline(self, held: ClaimedJob, open_by: float) -> float:
        """Return the loop time by which the job must be opened."""
        return min(open_by, max(held.claimed_at + _OPEN_TIMEOUT_S, trio.current_time() + _MIN_OPEN_TIMEOUT_S))

    async def _open_work(self, held: ClaimedJob, model: ModelConfig, deadline: float, open_by: float) -> OpenedJob:
        job = held.job
        spool = Spool(self.spool_directory, self.max_container_bytes)
        try:
            started = trio.current_time()
            until = self._open_deadline(held, open_by)
            commitment = await self.gateways.fetch(
                job.task_cid,
                spool,
                until,
                lambda: _run_blocking(lambda: check_commitment(spool, job.c), inline=spool.is_small),
            )
            self.timings.record_fetch(trio.current_time() - started)
            opener = await self._build_opener(held, commitment, until)
            envelope = await _run_blocking(lambda: open_envelope(spool, opener, job.owner), inline=spool.is_small)
            is_short = spool.length <= _MAX_INLINE_BYTES
            check = DelegationCheck(self.signer.domains, self.provider_id, self.clock.unix_time(), trio.current_time())
            work = await _run_blocking(
                lambda: build_work(held, envelope, model.serves, deadline, check), inline=is_short
            )
        finally:
            spool.clear()
        return OpenedJob(held, work, envelope.result_key)

    async def _build_opener(
        self, held: ClaimedJob, commitment: ContainerCommitment, until: float
    ) -> Callable[[], Opener]:
        book = self.address_book
        if held.job.designated == 0:
            dek = await self._release_key(held, commitment, until)
            return lambda: Opener.with_data_key(dek)
        box = self.box_secret
        if box is None:
            raise WorkFailed("no_cipher", "the job is sealed to this provider's box key, but no box key is configured")
        return lambda: Opener.with_secret(box, book.chain_id, book.job_registry, held.job.owner)

    async def _release_key(self, held: ClaimedJob, commitment: ContainerCommitment, until: float) -> bytes:
        """Request the data key of an open bid's payload from the escrow, and return the key."""
        answer_key = SecretKey.generate()
        while True:
            body = self.signer.sign_release(
                held.job.job_id, commitment.seed_wrap, commitment.ct_hash, answer_key.public.raw, self.clock.now()
            )
            answer = await self.coordinator.release_key(body, until)
            is_temporary = isinstance(answer, CoordinatorRefusal) and answer.code in _RETRIED_CODES
            if not is_temporary or trio.current_time() + _RETRY_INTERVAL_S >= until:
                break
            await trio.sleep(_RETRY_INTERVAL_S)
        if isinstance(answer, ReleasedKey):
            dek = open_sealed(answer_key, answer.dek_sealed)
            if dek is None or len(dek) != _DEK_BYTES:
                raise WorkFailed(
                    "undecryptable",
                    "the escrow's answer does not contain a data key that is sealed to the request's key",
                )
            return dek
        if (
            isinstance(answer, CoordinatorRefusal)
            and answer.status < 500
            and answer.status != httpx.codes.TOO_MANY_REQUESTS
        ):
            raise WorkFailed(answer.code or "escrow_unavailable", f"the escrow answered {answer.status}")
        detail = (
            f"the escrow answered {answer.status} {answer.code}"
            if isinstance(answer, CoordinatorRefusal)
            else answer.detail
        )
        raise WorkFailed("escrow_unreachable", detail)


async def _run_blocking(function: Callable[[], T], *, inline: bool) -> T:
    """Run `function` in a thread, so that a large payload does not block other jobs, or directly if `inline`."""
    return function() if inline else await trio.to_thread.run_sync(function)
