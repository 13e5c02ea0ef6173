"""Polls with a book, a chain and waiting callers in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import attrs

from coordinatord.api.book.funding import Funding
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.leases_sql import LeaseDemand, LeasedJob, PollKey
from coordinatord.api.book.outlooks_sql import PollOutlook
from coordinatord.api.book.polls import Leased, Poll, Polls, PollWaits, checked_poll
from coordinatord.base.outcomes import SessionRow
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.snapshot_sql import Snapshot

HERE: Final = Snapshot(7, b"block 7", 700)
NEXT: Final = Snapshot(8, b"block 8", 800)
US: Final = SessionRow(b"\x01" * 20, 4)
KEY: Final = PollKey(4, 1)
WANTED: Final = JobFilter(state="Open", model_id=1)
NOTHING: Final = PollOutlook(
    known_model=True, some_open=False, some_free=False, some_offered=False, may_claim=False, holds_some=False
)
HELD_BY_OTHERS: Final = attrs.evolve(NOTHING, some_open=True)
FREE: Final = attrs.evolve(HELD_BY_OTHERS, some_free=True, may_claim=True)
OFFERED: Final = attrs.evolve(NOTHING, some_offered=True, may_claim=True)
POOR, RICH = b"\x0a" * 20, b"\x0b" * 20


def row(number: int, *, owner: bytes = RICH) -> JobRow:
    job_id = bytes([number]) * 32
    return JobRow(
        job_id, owner, job_id, 1, 60, "1", "2", 3, 4, 0, 9, "", 5, 0, 0, 0, 0, 0, None, "m", None, "10", None, 0, "0"
    )


def held(number: int, *, owner: bytes = RICH, is_new: bool = True) -> LeasedJob:
    return LeasedJob(row(number, owner=owner), is_new)


@attrs.define
class World:
    """Everything that polls depend on. Looks, leases and waits get one scripted answer after another. The last answer
    repeats."""

    outlooks: list[PollOutlook] = attrs.field(factory=lambda: [FREE])
    leases: list[list[LeasedJob]] = attrs.field(factory=lambda: [[]])
    wakes: list[bool] = attrs.field(factory=lambda: [False])
    offers: list[list[Any]] = attrs.field(factory=lambda: [[]])
    funds: list[Any] = attrs.field(factory=lambda: [Funds({POOR: 5, RICH: 100}, set())])
    snapshot: Snapshot = HERE
    now: float = 1000.0
    wait_takes: float | None = None  # None: each wait lasts until its end
    closed: bool = False
    answers: anyio.Event | None = None  # leases and the chain's answers wait for this event
    log: list[tuple[Any, ...]] = attrs.field(factory=list)
    places: dict[str, int] = attrs.field(factory=lambda: {"us": 1})

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.log if entry[0] == what]

    # --- database and statements
    async def transact(self, body: Callable[[Any], Awaitable[Any]]) -> Any:
        return await body(self)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        yield self

    def prepared_connection(self) -> Any:
        return self

    async def read_outlooks(self, _: Any, pollers: Sequence[PollKey]) -> tuple[Snapshot, dict[PollKey, PollOutlook]]:
        self.log.append(("outlook", *pollers))
        return self.snapshot, {poller: _next(self.outlooks) for poller in pollers}

    async def lease(self, _: Any, demand: LeaseDemand, lease_ms: int) -> tuple[Snapshot, list[LeasedJob]]:
        self.log.append(("lease", demand, lease_ms))
        await self._under_way()
        return self.snapshot, _next(self.leases)

    async def hold_back(self, _: Any, jobs: list[bytes]) -> None:
        self.log.append(("held back", jobs))

    async def hold_back_beyond(self, _: Any, owner: bytes, balance: int) -> None:
        self.log.append(("held back beyond", owner, balance))

    async def _under_way(self) -> None:
        if self.answers is not None:
            await self.answers.wait()

    # --- liveness
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
        return told  # type: ignore[no-any-return] # the test supplies it

    # --- waiting callers
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

    async def take(self, poller: PollKey, room: int, wanted: JobFilter) -> list[Any]:
        self.log.append(("offers", poller, room, wanted))
        jobs: list[Any] = _next(self.offers)
        return jobs


@attrs.frozen
class _Token:
    funds: Callable[..., Awaitable[Funds]]


@attrs.frozen
class _Places:
    has_room: Callable[[str], bool]
    held: Callable[..., Any]


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def funding(world: World) -> Funding:
    any_of: Any = world
    token: Any = _Token(world.read_funds)
    return Funding(token, any_of)


def of(world: World, *, waits: bool = True, offers: bool = True) -> Polls:
    any_of: Any = world
    places: Any = _Places(world.has_room, world.held_place)
    return Polls(
        any_of,
        funding(world),
        lease_ms=15_000,
        liveness=any_of,
        waits=PollWaits(any_of, places) if waits else None,
        offers=any_of if offers else None,
    )


def poll_of(
    free: int = 2, wanted: JobFilter = WANTED, limit: int = 10, offset: int = 0, *, pending: bool = False
) -> Poll:
    poll = checked_poll(US, wanted, free, limit, offset, pending=pending)
    assert isinstance(poll, Poll)
    return poll


async def looked(world: World, free: int = 2, wanted: JobFilter = WANTED, **more: Any) -> Leased:
    return await of(world).answer(poll_of(free, wanted, **more))


async def waited(
    world: World, seconds: int = 25, free: int = 2, caller: str = "us", *, pending: bool = False, waits: bool = True
) -> tuple[Leased, float]:
    polls = of(world, waits=waits)
    return await polls.answer_or_wait(poll_of(free, pending=pending), seconds=seconds, caller=caller)
