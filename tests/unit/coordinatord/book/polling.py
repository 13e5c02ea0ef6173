"""Polls over a book, a chain and callers who wait that exist on paper only."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import attrs

from coordinatord.api.book.book_sql import JobFilter, JobRow
from coordinatord.api.book.leases_sql import START, HeldJob, JobPlace, LeaseRequest, Peek, PollKey
from coordinatord.api.book.polls import Funding, Leased, Leasing, Polls, PollWaits
from coordinatord.base.outcomes import SessionRow
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.batched_reads import IndexRead
from coordinatord.storage.database.snapshot_sql import Snapshot

HERE: Final = Snapshot(7, b"block 7", 700)
NEXT: Final = Snapshot(8, b"block 8", 800)
US: Final = SessionRow(b"\x01" * 20, 4)
KEY: Final = PollKey(4, 1)
WANTED: Final = JobFilter(state="Open", model_id=1)
NOTHING: Final = Peek(known_model=True, any_bid=False, any_open=False, anything=False)
OTHERS: Final = attrs.evolve(NOTHING, any_open=True)
SOMETHING: Final = attrs.evolve(OTHERS, anything=True)
POOR, RICH = b"\x0a" * 20, b"\x0b" * 20


def held(number: int, *, owner: bytes = RICH, is_new: bool = True, amount: int = 10) -> HeldJob:
    job_id = bytes([number]) * 32
    row = JobRow(
        job_id, owner, job_id, 1, 60, "1", "2", 3, 4, 0, 9, "", 5, 0, 0, 0, 0, 0, None, "m", None, "10", None, 0, "0"
    )
    return HeldJob(row, is_new, amount, JobPlace(5, number))


@attrs.define
class World:
    """Whatever polls stand on. Looks, leases and waits are answered one after the other, the last again and again."""

    peeks: list[Peek | None] = attrs.field(factory=lambda: [SOMETHING])
    leases: list[list[HeldJob]] = attrs.field(factory=lambda: [[]])
    wakes: list[bool] = attrs.field(factory=lambda: [False])
    offers: list[tuple[list[Any], bool]] = attrs.field(factory=lambda: [([], False)])
    funds: list[Any] = attrs.field(factory=lambda: [Funds({POOR: 5, RICH: 100}, set())])
    heads: dict[int, JobPlace] = attrs.field(factory=dict)  # by model
    snapshot: Snapshot = HERE
    now: float = 1000.0
    wait_takes: float | None = None  # None: until the end of each
    closed: bool = False
    answers: anyio.Event | None = None  # until when leases and the chain's answers are under way
    log: list[tuple[Any, ...]] = attrs.field(factory=list)
    places: dict[str, int] = attrs.field(factory=lambda: {"us": 1})

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.log if entry[0] == what]

    # --- the database and its statements
    async def transact(self, body: Callable[[Any], Awaitable[Any]]) -> Any:
        return await body(self)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    async def lease(
        self, _: Any, asks: list[LeaseRequest], filters: JobFilter, *, lease_ms: int, custody: int | None
    ) -> tuple[Snapshot, dict[PollKey, list[HeldJob]]]:
        jobs = _next(self.leases)
        self.log.append(
            ("lease", sorted((*ask.poller, ask.free, ask.after) for ask in asks), filters, lease_ms, custody)
        )
        await self._under_way()
        return self.snapshot, {ask.poller: jobs for ask in asks}

    async def hold_back(self, _: Any, jobs: list[bytes]) -> None:
        self.log.append(("held back", jobs))

    async def hold_back_beyond(self, _: Any, owner: bytes, balance: int) -> None:
        self.log.append(("held back beyond", owner, balance))

    async def _under_way(self) -> None:
        if self.answers is not None:
            await self.answers.wait()

    # --- hints and attendance
    def hints(self, database: Any, position: Any) -> "World":
        self.log.append(("hints", database is self, position))
        return self

    def head(self, model_id: int) -> JobPlace:
        return self.heads.get(model_id, START)

    async def peek(self, poller: PollKey) -> IndexRead[Peek]:
        self.log.append(("peek", poller))
        return IndexRead(self.snapshot, _next(self.peeks))

    def leased(self, model_id: int, jobs: list[HeldJob]) -> None:
        self.log.append(("leased", model_id, [job.place.log for job in jobs]))

    async def note(self, poller: PollKey, free: int) -> None:
        self.log.append(("live", poller, free))

    @contextmanager
    def staying(self, poller: PollKey, free: int) -> Iterator[None]:
        self.log.append(("stays", poller, free))
        yield

    # --- the chain
    async def read_funds(self, owners: list[bytes], jobs: list[tuple[bytes, bytes]]) -> Funds:
        self.log.append(("funds", sorted(owners), sorted(job_id[0] for _, job_id in jobs)))
        told = _next(self.funds)
        await self._under_way()
        if told is None:
            await anyio.sleep_forever()
        if isinstance(told, Exception):
            raise told
        return told  # type: ignore[no-any-return] # of the test's own making

    # --- those who wait
    def has_room(self, caller: str) -> bool:
        return self.places.get(caller, 0) > 0

    @contextmanager
    def held_place(self, caller: str, kind: str) -> Iterator[None]:
        self.log.append(("place", caller, kind))
        yield

    @contextmanager
    def waiting(self, poller: PollKey, free: int, *, pending: bool) -> Iterator[Any]:
        self.log.append(("waits", poller, free, pending))
        yield self

    def looked(self) -> None:
        self.log.append(("looked",))

    async def wait(self, seconds: float) -> bool:
        self.log.append(("wait", seconds))
        self.now += seconds if self.wait_takes is None else self.wait_takes
        return _next(self.wakes)

    def pass_on(self, _: Any) -> None:
        self.log.append(("passed on",))

    def pass_offer_on(self, _: Any) -> None:
        self.log.append(("offer passed on",))

    async def take(self, poller: PollKey, room: int, wanted: JobFilter) -> tuple[list[Any], bool]:
        self.log.append(("offers", poller, room, wanted))
        return _next(self.offers)


@attrs.frozen
class _Token:
    funds: Callable[..., Awaitable[Funds]]


@attrs.frozen
class _Places:
    has_room: Callable[[str], bool]
    held: Callable[..., Any]


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


async def _custody(_: Any) -> int:
    return 6


def funding(world: World) -> Funding:
    any_of: Any = world
    token: Any = _Token(world.read_funds)
    return Funding(token, any_of)


def leasing(world: World) -> Leasing:
    any_of: Any = world
    return Leasing(any_of, any_of, 15_000, _custody)


def of(world: World, *, waits: bool = True, offers: bool = False) -> Polls:
    any_of: Any = world
    position: Any = "of the index"
    places: Any = _Places(world.has_room, world.held_place)
    return Polls(
        any_of,
        funding(world),
        position,
        lease_ms=15_000,
        liveness=any_of,
        custody=_custody,
        waits=PollWaits(any_of, places) if waits else None,
        offers=any_of if offers else None,
    )


async def looked(world: World, free: int = 2, wanted: JobFilter = WANTED, **more: Any) -> Leased:
    found = await of(world, offers=True).poll(US, wanted, free, 10, 0, **more)
    assert isinstance(found, Leased)
    return found


async def waited(world: World, seconds: int = 25, free: int = 2, caller: str = "us", **more: Any) -> tuple[Any, float]:
    polls_of = more.pop("of", None) or of(world, offers=True)
    leased, lasted = await polls_of.poll_and_wait(US, WANTED, free, 10, 0, seconds=seconds, caller=caller, **more)
    return leased, lasted
