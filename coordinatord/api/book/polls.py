"""Polls (GET /evm/jobs with `free`): a provider shows that it is live, and leases jobs that nobody else holds.

Most polls find nothing: those are answered by one look that all polls of the moment share.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import anyio
import attrs
import structlog

from common.refusal import Refused
from coordinatord.api.book import leases_sql
from coordinatord.api.book.book_sql import JobFilter, JobRow
from coordinatord.api.book.leases_sql import START, HeldJob, LeaseRequest, Peek, PollKey
from coordinatord.api.book.liveness import Liveness, PollHints
from coordinatord.api.book.pending_offers import PendingOffers
from coordinatord.api.book.pending_offers_sql import PendingJob
from coordinatord.api.book.waiting import WaitingPoll, WaitingPolls
from coordinatord.api.events.places import Places
from coordinatord.base.errors import Retryable
from coordinatord.base.outcomes import NotSigned, SessionRow
from coordinatord.chain.contracts.payment_token import Funds, PaymentToken
from coordinatord.storage.database.batched_reads import BatchedReads, FreshValue
from coordinatord.storage.database.connections import Connection, Database
from coordinatord.storage.database.snapshot_sql import Snapshot

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
        balances, unspent = self._balances, self._unspent  # of this block, though others replace them meanwhile
        owners = list({job.row.owner for job in jobs} - balances.keys())
        unknown = [(job.row.owner, job.row.job_id) for job in jobs if job.row.job_id not in unspent]
        fresh = await self._read(owners, unknown) if owners or unknown else None
        if fresh is None:
            return Funds(balances, set())
        balances |= fresh.balances
        unspent |= {job_id for _, job_id in unknown} - fresh.spent
        return Funds(balances, fresh.spent)

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
        free: dict[PollKey, int] = {}
        for wish in wishes:  # of two polls of one provider, whatever the order, the one that asks for more decides
            free[wish.poller] = max(free.get(wish.poller, wish.free), wish.free)
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


@attrs.frozen(slots=True)
class Leased:
    """What a poll is given. `pending`: jobs whose post is under way, offered for a second; None to a poll that does not
    ask for such."""

    snapshot: Snapshot
    rows: list[JobRow]
    pending: list[PendingJob] | None = None


@attrs.frozen(slots=True)
class Look:
    """One look for a poll. `others`: jobs are open that it was not given, held by somebody else or not for it; they may
    become free without any news. `left`: some of them nobody holds. `offers_left`: the same of pending offers."""

    leased: Leased
    others: bool
    left: bool
    offers_left: bool = False

    @property
    def empty(self) -> bool:
        return not self.leased.rows and not self.leased.pending


@attrs.frozen(slots=True)
class Poll:
    """What a provider asks for; `limit` and `offset` are of the page that it is given of what it holds."""

    poller: PollKey
    wanted: JobFilter
    free: int
    limit: int
    offset: int
    pending: bool = False


@attrs.frozen(slots=True)
class PollWaits:
    """Polls that wait, and the places that there are for them."""

    polls: WaitingPolls
    places: Places


_LOOK_AGAIN: Final = 2.0  # seconds, of a poll that waits while others hold jobs: a lease that lapses is no news
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
        liveness: Liveness,
        custody: Custody = no_custody,
        waits: PollWaits | None = None,
        offers: PendingOffers | None = None,
    ) -> None:
        """`custody` tells the block up to which open bids are sealed to keys that an escrow has lost. Without `waits`
        no poll waits."""
        self._funding = funding
        self._waits = waits
        self._offers = offers
        self._attendance = liveness
        self._hints = PollHints(database, position)
        self._leasing = Leasing(database, self._hints, lease_ms, custody)

    async def poll(
        self, session: SessionRow, wanted: JobFilter, free: int, limit: int, offset: int, *, pending: bool = False
    ) -> Leased | NotSigned:
        """Record the provider as live with `free` slots, lease it the oldest jobs it may claim, give what it holds."""
        poll = _checked(session, wanted, free, limit, offset, pending=pending)
        return poll if isinstance(poll, NotSigned) else (await self._look(poll)).leased

    async def poll_and_wait(
        self,
        session: SessionRow,
        wanted: JobFilter,
        free: int,
        limit: int,
        offset: int,
        *,
        pending: bool = False,
        seconds: int,
        caller: str,
    ) -> tuple[Leased | NotSigned, float]:
        """The same, held for so many seconds at most while there is nothing for it, and the seconds that it waited. The
        provider counts as live meanwhile. A caller that has all its places is answered at once."""
        poll = _checked(session, wanted, free, limit, offset, pending=pending)
        if isinstance(poll, NotSigned):
            return poll, 0.0
        if self._waits is None or not seconds or not free or not self._waits.places.has_room(caller):
            return (await self._look(poll)).leased, 0.0
        polls = self._waits.polls
        with self._waits.places.held(caller, "poll"), polls.waiting(poll.poller, free, pending=pending) as waiting:
            return await self._until_leased(poll, waiting, self._waits.polls, seconds)

    async def _until_leased(
        self, poll: Poll, waiting: WaitingPoll, polls: WaitingPolls, seconds: int
    ) -> tuple[Leased, float]:
        until, waited = anyio.current_time() + seconds, 0.0
        look = await self._look(poll)
        with self._attendance.staying(poll.poller, poll.free):
            while look.empty and not polls.closed and (left := until - anyio.current_time()) > 0:
                began = anyio.current_time()
                woken = await waiting.wait(min(left, _LOOK_AGAIN) if look.others else left)
                waited += anyio.current_time() - began
                look = await self._look(poll, noted=True)
                if woken and look.left and not look.leased.rows:
                    polls.pass_on(waiting)
                if woken and look.offers_left:
                    polls.pass_offer_on(waiting)
                waiting.looked()
        return look.leased, waited

    async def _look(self, poll: Poll, *, noted: bool = False) -> Look:
        look = await self._look_in_book(poll, noted=noted)
        if not poll.pending or self._offers is None:
            return look
        leased = look.leased
        room = 0 if poll.wanted.provider_id else poll.free - len(leased.rows)
        pending, left = await self._offers.take(poll.poller, room, poll.wanted)
        return attrs.evolve(look, leased=attrs.evolve(leased, pending=pending), offers_left=left)

    async def _look_in_book(self, poll: Poll, *, noted: bool) -> Look:
        """`noted`: that the provider is live is known already."""
        poller, wanted = poll.poller, poll.wanted
        peeked = await self._peek(poller)
        if not noted:
            await self._attendance.note(poller, poll.free)
        if peeked is not None:
            snapshot, peek = peeked
            if not peek.anything:
                return Look(Leased(snapshot, []), others=peek.any_open, left=False)
        filters = JobFilter(
            owner=wanted.owner,
            min_rate_in=wanted.min_rate_in,
            min_rate_out=wanted.min_rate_out,
            posted_before=wanted.posted_before,
        )
        # No open job has been claimed by anybody: asked for those of a provider, a poll leases none.
        snapshot, held = await self._lease(Wish(poller, 0 if wanted.provider_id else poll.free, filters))
        ordered = held[::-1] if wanted.newest_first else held
        rows = [job.row for job in ordered[poll.offset : poll.offset + poll.limit]]
        return Look(Leased(snapshot, rows), others=True, left=True)

    async def _peek(self, poller: PollKey) -> tuple[Snapshot, Peek] | None:
        """None where there is likely to be something: bids of the model were leased a moment ago."""
        if self._hints.head(poller.model_id) is not START:
            return None
        found = await self._hints.peek(poller)
        if found.value is None or not found.value.known_model:
            raise Refused("model is not in the catalogue", "model")
        return found.snapshot, found.value

    async def _lease(self, wish: Wish) -> Held:
        for _ in range(_ROUNDS):
            snapshot, held = await self._leasing.take(wish)
            new = [job for job in held if job.is_new]
            if not await self._funding.hold_back_unpaid(new, snapshot):
                return snapshot, held
        return await self._leasing.take(wish._replace(free=0))


def _checked(
    session: SessionRow, wanted: JobFilter, free: int, limit: int, offset: int, *, pending: bool
) -> Poll | NotSigned:
    if session.provider_id is None:
        return NotSigned("authentication_error", "not_registered", "free needs a provider session")
    if wanted.state != "Open" or wanted.model_id is None:
        missing = {"state": wanted.state != "Open", "model": wanted.model_id is None}
        said = {"state": "state=Open", "model": "model"}
        faults = [Refused(f"free needs {said[name]}", name) for name, lacks in missing.items() if lacks]
        raise Refused.together(faults)
    return Poll(PollKey(session.provider_id, wanted.model_id), wanted, free, limit, offset, pending)
