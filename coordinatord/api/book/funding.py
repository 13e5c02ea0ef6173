"""Check that owners can pay for their jobs, before the jobs are leased to a provider.

An owner may move its funds or cancel an authorisation while its jobs are open.
"""

from collections.abc import Sequence
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.api.book import leases_sql
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.base.errors import Retryable
from coordinatord.chain.contracts.payment_token import Funds, PaymentToken
from coordinatord.storage.database.connections import Database
from coordinatord.storage.database.snapshot_sql import Snapshot

log = structlog.get_logger(__name__)

_NODE_TIMEOUT_S: Final = 0.25
_NODE_RETRY_PAUSE_S: Final = 5.0


@attrs.define(slots=True)
class FundsChecker:
    """Holds back jobs that their owners cannot pay for. One request reads the funds for all jobs of a poll. The answer
    is cached until the index moves to another block.

    A slow node does not delay polls: the jobs then count as payable, and the node is not queried for a while. This is
    safe, because the token rejects the claim of a job that its owner cannot pay for."""

    token: PaymentToken
    database: Database
    _block_hash: bytes = attrs.field(default=b"", init=False)
    _balances: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _unspent_job_ids: set[bytes] = attrs.field(factory=set, init=False)
    _paused_until: float = attrs.field(default=0.0, init=False)

    async def hold_back_unpaid(self, jobs: Sequence[JobRow], snapshot: Snapshot) -> bool:
        """Hold back jobs whose authorisation is used or cancelled. If an owner cannot pay for one of the jobs, hold
        back all open jobs of this owner that cost more than the owner's balance. Return True if any job was held
        back."""
        funds = await self.read_funds(jobs, snapshot)
        spent = [job.job_id for job in jobs if job.job_id in funds.used_job_ids]
        poor = {job.owner for job in jobs if funds.balances.get(job.owner, int(job.amount)) < int(job.amount)}
        if not spent and not poor:
            return False
        log.info("unpaid jobs held back", spent=len(spent), owners=len(poor))
        async with self.database.connection() as connection:
            if spent:
                await leases_sql.hold_back_jobs(connection, spent)
            for owner in poor:
                await leases_sql.hold_back_unaffordable_jobs(connection, owner, funds.balances[owner])
        return True

    async def read_funds(self, jobs: Sequence[JobRow], snapshot: Snapshot) -> Funds:
        """Return the known balances of the jobs' owners, and the jobs with a used or cancelled authorisation."""
        if self._block_hash != snapshot.block_hash:
            self._block_hash, self._balances, self._unspent_job_ids = snapshot.block_hash, {}, set()
        # Keep the values of this block, because another call may replace the attributes.
        balances, unspent = self._balances, self._unspent_job_ids
        owners = list({job.owner for job in jobs} - balances.keys())
        unknown = [(job.owner, job.job_id) for job in jobs if job.job_id not in unspent]
        fresh = await self._read_from_node(owners, unknown) if owners or unknown else None
        if fresh is None:
            return Funds(balances, set())
        balances |= fresh.balances
        unspent |= {job_id for _, job_id in unknown} - fresh.used_job_ids
        return Funds(balances, fresh.used_job_ids)

    async def _read_from_node(self, owners: list[bytes], jobs: list[tuple[bytes, bytes]]) -> Funds | None:
        """Return the funds as the node reports them, or None if it did not answer in time."""
        if anyio.current_time() < self._paused_until:
            return None
        try:
            with anyio.fail_after(_NODE_TIMEOUT_S):
                return await self.token.read_funds(owners, jobs)
        except (TimeoutError, Retryable) as error:
            log.warning("funds not read", reason=str(error) or type(error).__name__)
            self._paused_until = anyio.current_time() + _NODE_RETRY_PAUSE_S
            return None
