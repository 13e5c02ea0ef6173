"""Offers on their way from pollers to claimers: jobs that are left alone, and a channel ordered by deadline."""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import attrs
import trio

from common import quotes
from common.address_book import AddressBook
from common.domains import Domains
from common.messages.jobs import Order
from common.messages.payments import job_payment
from common.secp256k1 import recover
from svcd.base.errors import Unavailable
from svcd.base.timings import Clock
from svcd.coordinator.chain import ChainReader
from svcd.journal.held_job import Job, PendingOffer, Slot

_PAUSE: Final = 10.0  # after a refusal that is about us: the next claim would meet the same
_A_WHILE: Final = 30.0  # after a refusal that is about a job
_NO_ESCROW: Final = 300.0  # after the escrow gave no key: until then each open bid claimed would be failed as well
_LOOK_AT_FUNDS: Final = 0.4  # seconds: an offer of a job whose post is under way stands for one
_FOR_GOOD: Final = 2 * 86_400  # no order is open for longer


@attrs.define(slots=True, eq=False)
class Exclusions:
    clock: Clock
    _until: dict[bytes, float] = attrs.field(factory=dict)  # Unix seconds
    _resting: dict[bytes, float] = attrs.field(factory=dict)  # loop time: a machine's clock may be wrong, and set right
    _paused: dict[str, float] = attrs.field(factory=dict)  # loop time
    _no_escrow_until: float = 0.0

    def remember(self, job_ids: Iterable[bytes]) -> None:
        """Those that an earlier run took on and did not settle."""
        for job_id in job_ids:
            self._until[job_id] = self.clock.wall() + _FOR_GOOD

    def add(self, job_id: bytes, expires_at: float) -> None:
        """Until its order has expired."""
        now = self.clock.wall()
        self._until = {known: until for known, until in self._until.items() if until > now}
        self._until[job_id] = expires_at

    def for_a_while(self, job_id: bytes) -> None:
        """The chain refused a claim of it for what may pass: a token that is paused, an owner who is short of funds, a
        reorganisation between its post and its claim."""
        now = trio.current_time()
        self._resting = {known: until for known, until in self._resting.items() if until > now}
        self._resting[job_id] = now + _A_WHILE

    def __contains__(self, job_id: bytes) -> bool:
        if (resting := self._resting.get(job_id)) is not None and resting > trio.current_time():
            return True
        return self._until.get(job_id, 0.0) > self.clock.wall()

    def pause(self, model: str) -> None:
        self._paused[model] = trio.current_time() + _PAUSE

    def is_paused(self, model: str) -> bool:
        return trio.current_time() < self._paused.get(model, 0.0)

    def escrow_is_away(self) -> None:
        self._no_escrow_until = trio.current_time() + _NO_ESCROW

    @property
    def without_escrow(self) -> bool:
        """Open bids are not to be claimed: nobody would release their keys."""
        return trio.current_time() < self._no_escrow_until


@attrs.frozen(slots=True, eq=False)
class Offer:
    """A job that was leased to us; its slot is taken."""

    job: Job
    model: str
    slot: Slot
    pending: bool = False  # its post is not in a block yet


# A pending offer held against what its owner signed: nobody else has looked at it for us.


@attrs.frozen(slots=True, eq=False)
class OfferCheck:
    """`chain`: None where there is no node to ask for the owner's funds; the claim collects them in any case."""

    book: AddressBook
    chain: ChainReader | None
    domains: Domains = attrs.field(
        init=False, default=attrs.Factory(lambda self: Domains.of(self.book), takes_self=True)
    )

    async def fault(self, offer: PendingOffer) -> str | None:
        """Why it must not be claimed, in words; None when all is well, as far as can be seen in half a second."""
        order = Order(**{field.name: getattr(offer, field.name) for field in attrs.fields(Order)})
        if quotes.job_id(offer.owner, offer.c) != offer.job_id:
            return "job_id must be the hash of owner and commitment"
        if recover(self.domains.jobs.digest(order), offer.signature) != offer.owner:
            return "the order is not signed by its owner"
        cap = quotes.cap(offer.rate_in, offer.rate_out, offer.units_in, offer.units_out)
        if offer.amount < cap:
            return f"the amount must be at least {cap}, and is {offer.amount}"
        payment = job_payment(offer.owner, self.book.job_registry, offer.amount, offer.expires_at, offer.job_id)
        if recover(self.domains.token.digest(payment), offer.auth_sig) != offer.owner:
            return f"the payment is not signed by the owner for {offer.amount}"
        if self.chain is None:
            return None
        try:
            with trio.move_on_after(_LOOK_AT_FUNDS):
                return await self.chain.lacks_funds(offer.owner, offer.job_id, offer.amount)
        except Unavailable:
            pass
        return None


# A bounded channel between two stages that hands out what is due first.

T = TypeVar("T")


class DeadlineChannel(Generic[T]):
    """Senders wait while it is full, receivers while it is empty. It is not closed: receivers are cancelled."""

    def __init__(self, capacity: int) -> None:
        self._room = trio.Semaphore(capacity)
        self._filled = trio.Semaphore(0)
        self._heap: list[tuple[float, int, T]] = []
        self._order: Iterator[int] = itertools.count()  # of equal deadlines, first come, first served

    async def send(self, deadline: float, item: T) -> None:
        await self._room.acquire()
        heapq.heappush(self._heap, (deadline, next(self._order), item))
        self._filled.release()

    async def receive(self) -> T:
        await self._filled.acquire()
        _, _, item = heapq.heappop(self._heap)
        self._room.release()
        return item

    def drain(self) -> list[T]:
        """Everything that waits, in order; senders that wait get room."""
        waiting: list[T] = []
        while self._heap:
            self._filled.acquire_nowait()
            waiting.append(heapq.heappop(self._heap)[2])
            self._room.release()
        return waiting
