"""Polls (GET /evm/jobs with `free`): a provider shows that it is live, and leases jobs that nobody else holds.

Most polls find nothing: those are answered by one look that all polls of the moment share.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import anyio
import attrs
import structlog

from common.refusal import Refused
from coordinatord.base.errors import NotSigned, Retryable, SessionRow
from coordinatord.book import leases_sql
from coordinatord.book.leases_sql import START, HeldJob, LeaseRequest, PollKey
from coordinatord.book.liveness import Liveness, PollHints
from coordinatord.book.sql import JobFilter, JobRow
from coordinatord.chain.registries import Funds, PaymentToken
from coordinatord.database.batched_reads import BatchedReads, FreshValue, Snapshot
from coordinatord.database.connections import Connection, Database

log = structlog.get_logger(__name__)

_PATIENCE: Final = 0.25  # seconds that a poll waits for the node
_PAUSE: Final = 5.0  # seconds in which a node that kept a poll waiting is not asked again


@attrs.define(slots=True)
class Funding:
    """Check that jobs about to be leased can still be paid: owners move their funds, and cancel authorisations.

    The chain is asked when jobs are leased, in one request for all jobs of a poll, and its answer counts as long as the
    index stands where it stood. A slow or silent node delays no poll: then the jobs count as paid, and the token
    refuses the claim of one that is not."""

    token: PaymentToken
    database: Database
    _at: bytes = attrs.field(default=b"", init=False)  # the block that what is known is of
    _balances: dict[bytes, int] = attrs.field(factory=dict, init=False)
    _unspent: set[bytes] = attrs.field(factory=set, init=False)
    _asleep_until: float = attrs.field(default=0.0, init=False)

    async def hold_back_unpaid(self, jobs: list[HeldJob], snapshot: Snapshot) -> bool:
        """Take the jobs that cannot be paid from everybody's leases, with others that the same owners cannot pay. True
        when there were any."""
        funds = await self.of(jobs, snapshot)
        spent = [job.row.job_id for job in jobs if job.row.job_id in funds.spent]
        poor = {job.row.owner for job in jobs if funds.balances.get(job.row.owner, job.amount) < job.amount}
        if not spent and not poor:
            return False
        log.info("unpaid jobs held back", spent=len(spent), owners=len(poor))
        async with self.database.connection() as connection:
            if spent:
                await leases_sql.hold_back(connection, spent)
            for owner in poor:
                await leases_sql.hold_back_beyond(connection, owner, funds.balances[owner])
        return True

    async def of(self, jobs: list[HeldJob], snapshot: Snapshot) -> Funds:
        """Balances of the jobs' owners as far as they are known, and the jobs whose authorisation is used or
        cancelled."""
        if self._at != snapshot.block_hash:
            self._at, self._balances, self._unspent = snapshot.block_hash, {}, set()
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
        except (TimeoutError, Retryable) as error:
            log.warning("leasing without a look at payments", reason=str(error) or type(error).__name__)
            self._asleep_until = anyio.current_time() + _PAUSE
            return None


Held: TypeAlias = tuple[Snapshot, list[HeldJob]]
Custody: TypeAlias = Callable[[Connection], Awaitable[int | None]]

# Calls of one process at a time: while one is answered, the next runs. More would only hold connections that others
# want; and whoever waits here waits for its turn, where in the pool it would be given up.
_AT_ONCE: Final = 2
_MOST_TOGETHER: Final = 64  # polls; those of other processes for the same providers wait until they are done
_PLAIN: Final = JobFilter()


class Wish(NamedTuple):
    """A poll that waits for leases. `filters`: of jobs beyond being open and of the model."""

    poller: PollKey
    free: int
    filters: JobFilter


class Leasing:
    """Batches concurrent polls into one lease statement, because the round trip dominates the cost of a poll."""

    def __init__(self, database: Database, hints: PollHints, lease_ms: int, custody: Custody) -> None:
        self._database = database
        self._hints = hints
        self._lease_ms = lease_ms
        self._custody = custody
        self._plain = BatchedReads[Wish, Held](database, self._take, at_once=_AT_ONCE, most=_MOST_TOGETHER)
        # What one filter leaves aside is no other's business: these go one by one.
        self._filtered = BatchedReads[Wish, Held](database, self._take, at_once=_AT_ONCE, most=1)

    async def take(self, wish: Wish) -> Held:
        """Lease the provider as many jobs as are free and it may claim; all that it then holds, oldest first."""
        return await (self._plain if wish.filters == _PLAIN else self._filtered).get(wish)

    async def _take(self, database: Database, wishes: list[Wish]) -> dict[Wish, Held]:
        filters = wishes[0].filters
        free: dict[PollKey, int] = defaultdict(int)
        for wish in wishes:  # of two polls of one provider, whatever the order, the one that asks for more decides
            free[wish.poller] = max(free[wish.poller], wish.free)
        heads = {poller.model_id: self._head(poller.model_id, filters) for poller in free}
        asks = [LeaseRequest(poller, slots, heads[poller.model_id]) for poller, slots in free.items()]

        async def body(connection: Connection) -> tuple[Snapshot, dict[PollKey, list[HeldJob]]]:
            custody = await self._custody(connection)
            return await leases_sql.poll(connection, asks, filters, lease_ms=self._lease_ms, custody=custody)

        snapshot, held = await database.transact(body)
        if filters == _PLAIN:
            for model_id in heads:
                taken = [job for poller, jobs in held.items() if poller.model_id == model_id for job in jobs]
                self._hints.leased(model_id, taken)
        return {wish: (snapshot, held[wish.poller]) for wish in wishes}

    def _head(self, model_id: int, filters: JobFilter) -> leases_sql.JobPlace:
        return self._hints.head(model_id) if filters == _PLAIN else START


Leased: TypeAlias = tuple[Snapshot, list[JobRow]]

_ROUNDS: Final = 3  # how often what turned out to be unpaid is replaced; what is left over comes with the next poll


async def no_custody(_: Connection) -> int | None:
    """No block before which an escrow lost its keys."""
    return None


class Polls:
    def __init__(
        self,
        database: Database,
        funding: Funding,
        position: FreshValue[Snapshot],
        *,
        lease_ms: int,
        liveness_ms: int,
        custody: Custody = no_custody,
    ) -> None:
        """`custody` tells the block up to which open bids are sealed to keys that an escrow has lost."""
        self._funding = funding
        self._attendance = Liveness(database, liveness_ms)
        self._hints = PollHints(database, position)
        self._leasing = Leasing(database, self._hints, lease_ms, custody)

    async def poll(
        self, session: SessionRow, wanted: JobFilter, free: int, limit: int, offset: int
    ) -> Leased | NotSigned:
        """Record the provider as live with `free` slots, lease it the oldest jobs it may claim, give what it holds."""
        if session.provider_id is None:
            return NotSigned("authentication_error", "not_registered", "free needs a provider session")
        if wanted.state != "Open" or wanted.model_id is None:
            missing = {"state": wanted.state != "Open", "model": wanted.model_id is None}
            said = {"state": "state=Open", "model": "model"}
            faults = [Refused(f"free needs {said[name]}", name) for name, lacks in missing.items() if lacks]
            raise Refused.together(faults)
        poller = PollKey(session.provider_id, wanted.model_id)
        nothing = await self._nothing_for(poller)
        await self._attendance.note(poller, free)
        if nothing is not None:
            return nothing, []
        filters = JobFilter(
            owner=wanted.owner,
            min_rate_in=wanted.min_rate_in,
            min_rate_out=wanted.min_rate_out,
            posted_before=wanted.posted_before,
        )
        # No open job has been claimed by anybody: asked for those of a provider, a poll leases none.
        snapshot, held = await self._lease(Wish(poller, 0 if wanted.provider_id else free, filters))
        return snapshot, [job.row for job in held[offset : offset + limit]]

    async def _nothing_for(self, poller: PollKey) -> Snapshot | None:
        """Snapshot at which the index holds nothing for the poll; None when it holds something."""
        if self._hints.head(poller.model_id) is not START:
            return None  # bids of the model were leased a moment ago, and there are likely to be more
        found = await self._hints.peek(poller)
        if found.value is None or not found.value.known_model:
            raise Refused("model is not in the catalogue", "model")
        return None if found.value.anything else found.snapshot

    async def _lease(self, wish: Wish) -> Held:
        for _ in range(_ROUNDS):
            snapshot, held = await self._leasing.take(wish)
            new = [job for job in held if job.is_new]
            if not new or not await self._funding.hold_back_unpaid(new, snapshot):
                return snapshot, held
        return await self._leasing.take(wish._replace(free=0))
