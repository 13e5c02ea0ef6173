"""Whether jobs that are about to be leased can still be paid: owners move their funds, and cancel authorisations.

The chain is asked when jobs are leased, in one request for all jobs of a poll, and what it said counts as long as the
index stands where it stood. A node that is slow or gone holds no poll up: then the jobs count as paid, and a claim that
the token refuses is what tells.
"""

from typing import Final

import anyio
import attrs
import structlog

from coordinatord.chain.payment_token import Funds, PaymentToken
from coordinatord.store import leases
from coordinatord.store.database import Database
from coordinatord.store.leases import HeldJob
from coordinatord.store.snapshot import Snapshot
from coordinatord.trouble import Retryable

log = structlog.get_logger(__name__)

_PATIENCE: Final = 0.25  # seconds that a poll waits for the node
_PAUSE: Final = 5.0  # seconds in which a node that kept a poll waiting is not asked again


@attrs.define(slots=True)
class Funding:
    token: PaymentToken
    database: Database
    _at: bytes = attrs.field(default=b"", init=False)  # the block that what is known is of
    _balances: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _unspent: set[bytes] = attrs.field(factory=set, init=False)
    _asleep_until: float = attrs.field(default=0.0, init=False)

    async def hold_back_unpaid(self, jobs: list[HeldJob], snapshot: Snapshot) -> bool:
        """Take from everybody's leases what cannot be paid of `jobs`, and what else the same owners cannot pay.
        Whether there was any."""
        if self._at != snapshot.block_hash:
            self._at, self._balances, self._unspent = snapshot.block_hash, {}, set()
        funds = await self._ask(jobs)
        spent = [job.row.job_id for job in jobs if job.row.job_id in funds.spent]
        poor = {job.row.owner for job in jobs if funds.balances.get(job.row.owner, job.amount) < job.amount}
        if not spent and not poor:
            return False
        log.info("unpaid jobs held back", spent=len(spent), owners=len(poor))
        async with self.database.connection() as connection:
            if spent:
                await leases.hold_back(connection, spent)
            for owner in poor:
                await leases.hold_back_beyond(connection, owner, funds.balances[owner])
        return True

    async def _ask(self, jobs: list[HeldJob]) -> Funds:
        owners = list({job.row.owner for job in jobs} - self._balances.keys())
        unknown = [(job.row.owner, job.row.job_id) for job in jobs if job.row.job_id not in self._unspent]
        fresh = await self._read(owners, unknown) if owners or unknown else None
        if fresh is None:
            return Funds(self._balances, set())
        self._balances |= fresh.balances
        self._unspent |= {job_id for _, job_id in unknown} - fresh.spent
        return Funds(self._balances, fresh.spent)

    async def _read(self, owners: list[bytes], jobs: list[tuple[bytes, bytes]]) -> Funds | None:
        """None when the node did not tell in time."""
        if anyio.current_time() < self._asleep_until:
            return None
        try:
            with anyio.fail_after(_PATIENCE):
                return await self.token.funds(owners, jobs)
        except (TimeoutError, Retryable) as trouble:
            log.warning("leasing without a look at payments", reason=str(trouble) or type(trouble).__name__)
            self._asleep_until = anyio.current_time() + _PAUSE
            return None
