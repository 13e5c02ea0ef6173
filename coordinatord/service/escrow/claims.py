"""Who holds the claim of a job, read from the chain; reads that wait for one another go to the node as one request.

The chain and not the index decides: a release cannot be taken back, and the index may trail. With confirmations the
claim is looked up a second time, that many blocks below the head.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import attrs

from coordinatord.chain.job_registry import CLAIMED, ChainJob, JobRegistry, read_job
from coordinatord.chain.provider_registry import ProviderRegistry, read_provider_id
from coordinatord.chain.rpc import Rpc, quantity
from coordinatord.chain.rpc_errors import RpcError
from coordinatord.chain.views import Reverted, View, decoded, read_many, read_trouble
from coordinatord.service.point_reads import PointReads
from coordinatord.trouble import Retryable

T = TypeVar("T")

_AT_ONCE: Final = 100  # calls in one request: nodes refuse larger ones


@attrs.frozen(slots=True)
class Claim:
    """The claim of a job by the provider that this wallet operates."""

    job_id: bytes
    wallet: bytes
    provider_id: int


class Claims:
    """Reads for any number of requests at once."""

    def __init__(self, jobs: JobRegistry, providers: ProviderRegistry, confirmations: int) -> None:
        self._jobs = jobs
        self._providers = providers
        self._confirmations = confirmations
        self._job_reads: PointReads[bytes, ChainJob | None] = PointReads(jobs, _read_jobs)
        self._wallet_reads: PointReads[bytes, int | None] = PointReads(providers, _read_wallets)
        self._deep_reads: PointReads[Claim, bool] = PointReads(jobs.rpc, self._read_depth)

    async def job(self, job_id: bytes) -> ChainJob | None:
        """The job as it is now; Retryable with `job_read` when the node answers with an error."""
        return await self._job_reads.get(job_id)

    async def provider_of(self, wallet: bytes) -> int | None:
        """The provider that the wallet is registered for; Retryable with `provider_id_read`."""
        return await self._wallet_reads.get(wallet)

    async def is_deep(self, claim: Claim) -> bool:
        """Whether the claim stands as many blocks below the head as the operator wants to see."""
        return self._confirmations == 0 or await self._deep_reads.get(claim)

    async def _read_depth(self, rpc: Rpc, claims: list[Claim]) -> dict[Claim, bool]:
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
        raise read_trouble(error, "job_read") from error


async def _read_views(rpc: Rpc, views: Sequence[View], decode: Callable[[bytes], T]) -> list[T]:
    values: list[T] = []
    for start in range(0, len(views), _AT_ONCE):
        part = views[start : start + _AT_ONCE]
        for view, answer in zip(part, await read_many(rpc, part, part[0].code), strict=True):
            if isinstance(answer, Reverted):
                raise Retryable("relay_unavailable", "the chain refuses a read", view.code)
            values.append(decoded(answer, decode, view.code))
    return values
