"""Polls with a book, a chain and waiting callers in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import attrs

from coordinatord.api.book.funding import FundsChecker
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.jobs_sql import JobRow
from coordinatord.api.book.leases_sql import LeasedJob, PollKey
from coordinatord.api.book.outlooks_sql import PollOutlook
from coordinatord.api.book.polls import Poll, PollAnswer, PollService, build_poll
from coordinatord.base.outcomes import SessionRow
from coordinatord.chain.contracts.payment_token import Funds
from coordinatord.storage.database.snapshot_sql import Snapshot

HERE: Final = Snapshot(7, b"block 7", 700)
NEXT: Final = Snapshot(8, b"block 8", 800)
US: Final = SessionRow(b"\x01" * 20, 4)
KEY: Final = PollKey(4, 1)
WANTED: Final = JobFilter(state="Open", model_id=1)
NOTHING: Final = PollOutlook(
    known_model=True, has_open_jobs=False, has_free_jobs=False, has_offers=False, may_claim=False, has_leases=False
)
HELD_BY_OTHERS: Final = attrs.evolve(NOTHING, has_open_jobs=True)
FREE: Final = attrs.evolve(HELD_BY_OTHERS, has_free_jobs=True, may_claim=True)
OFFERED: Final = attrs.evolve(NOTHING, has_offers=True, may_claim=True)
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
    connection_limits: dict[str, int] = attrs.field(factory=lambda: {"us": 1})

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.log if entry[0] == what]

    # Statements. The fixture puts them in the place of the real ones.
    async def read_outlooks(self, _: Any, pollers: Sequence[PollKey]) -> tuple[Snapshot, dict[PollKey, PollOutlook]]:
        self.log.append(("outlook", *pollers))
        return self.snapshot, {poller: _next(self.outlooks) for poller in pollers}

    async def lease(
        self, _: Any, poller: PollKey, free: int, wanted: JobFilter, lease_ms: int
    ) -> tuple[Snapshot, list[LeasedJob]]:
        self.log.append(("lease", poller, free, wanted, lease_ms))
        await self.under_way()
        return self.snapshot, _next(self.leases)

    async def hold_back(self, _: Any, jobs: list[bytes]) -> None:
        self.log.append(("held back", jobs))

    async def hold_back_unaffordable_jobs(self, _: Any, owner: bytes, balance: int) -> None:
        self.log.append(("held back beyond", owner, balance))

    async def under_way(self) -> None:
        if self.answers is not None:
            await self.answers.wait()


class Tables:
    """The database. Its connections are never used, because the statements are replaced."""

    async def transact(self, body: Callable[[Any], Awaitable[Any]]) -> Any:
        return await body(self)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["Tables"]:
        yield self

    def prepared_connection(self) -> "Tables":
        return self


@attrs.frozen
class Liveness:
    world: World

    async def record_poll(self, poller: PollKey, free: int) -> None:
        self.world.log.append(("live", poller, free))

    @contextmanager
    def keep_live(self, poller: PollKey, free: int) -> Iterator[None]:
        self.world.log.append(("stays", poller, free))
        yield


@attrs.frozen
class Token:
    """The payment token on the chain."""

    world: World

    async def read_funds(self, owners: list[bytes], jobs: list[tuple[bytes, bytes]]) -> Funds:
        world = self.world
        world.log.append(("funds", sorted(owners), sorted(job_id[0] for _, job_id in jobs)))
        told = _next(world.funds)
        await world.under_way()
        if told is None:
            await anyio.sleep_forever()
        if isinstance(told, Exception):
            raise told
        return told  # type: ignore[no-any-return] # the test supplies it


@attrs.frozen
class ConnectionLimits:
    world: World

    def has_room(self, caller: str) -> bool:
        return self.world.connection_limits.get(caller, 0) > 0

    @contextmanager
    def count_connection(self, caller: str, kind: str) -> Iterator[None]:
        self.world.log.append(("place", caller, kind))
        yield


@attrs.frozen
class WaitingPoll:
    world: World

    def mark_searched(self) -> None:
        self.world.log.append(("looked",))

    async def wait(self, seconds: float) -> bool:
        world = self.world
        world.log.append(("wait", seconds))
        world.now += seconds if world.wait_takes is None else world.wait_takes
        return bool(_next(world.wakes))


@attrs.frozen
class Waiting:
    """The polls that wait."""

    world: World

    @property
    def closed(self) -> bool:
        return self.world.closed

    @contextmanager
    def register(self, poller: PollKey, free: int, *, wants_offers: bool) -> Iterator[WaitingPoll]:
        self.world.log.append(("waits", poller, free, wants_offers))
        yield WaitingPoll(self.world)

    def wake_another(self, _: WaitingPoll) -> None:
        self.world.log.append(("passed on",))

    def wake_another_for_offer(self, _: WaitingPoll) -> None:
        self.world.log.append(("offer passed on",))


@attrs.frozen
class Offers:
    world: World

    async def take_offers(self, poller: PollKey, room: int, wanted: JobFilter) -> list[Any]:
        self.world.log.append(("offers", poller, room, wanted))
        jobs: list[Any] = _next(self.world.offers)
        return jobs


def _next(answers: list[Any]) -> Any:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def funding(world: World) -> FundsChecker:
    token: Any = Token(world)
    tables: Any = Tables()
    return FundsChecker(token, tables)


def of(world: World) -> PollService:
    tables: Any = Tables()
    given: dict[str, Any] = {"liveness": Liveness(world), "offers": Offers(world)}
    given |= {"waiting_polls": Waiting(world), "connection_limits": ConnectionLimits(world)}
    return PollService(tables, funding(world), lease_ms=15_000, **given)


def poll_of(
    free: int = 2, wanted: JobFilter = WANTED, limit: int = 10, offset: int = 0, *, wants_offers: bool = False
) -> Poll:
    poll = build_poll(US, wanted, free, limit, offset, wants_offers=wants_offers)
    assert isinstance(poll, Poll)
    return poll


async def looked(world: World, free: int = 2, wanted: JobFilter = WANTED, **more: Any) -> PollAnswer:
    return await of(world).answer(poll_of(free, wanted, **more))


async def waited(
    world: World, seconds: int = 25, free: int = 2, caller: str = "us", *, wants_offers: bool = False
) -> tuple[PollAnswer, float]:
    return await of(world).answer_or_wait(poll_of(free, wants_offers=wants_offers), seconds=seconds, caller=caller)
