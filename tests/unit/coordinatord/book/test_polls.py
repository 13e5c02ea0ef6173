"""Polls alone: what a look leases, what is held back as unpaid, and how long a poll waits for work."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import attrs
import pytest

from common.refusal import Refused
from coordinatord.base.errors import NotSigned, Retryable, SessionRow
from coordinatord.book import leases_sql, polls
from coordinatord.book.leases_sql import START, HeldJob, JobPlace, LeaseRequest, Peek, PollKey
from coordinatord.book.polls import Funding, Leased, Polls, PollWaits, Wish
from coordinatord.book.sql import JobFilter, JobRow
from coordinatord.chain.registries import Funds
from coordinatord.database.batched_reads import IndexRead, Snapshot

pytestmark = pytest.mark.anyio

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
    row = JobRow(job_id, owner, job_id, 1, 60, "1", "2", 3, 4, 0, 9, "", 5, 0, 0, 0, 0, 0, None, "m", None, "10")
    return HeldJob(row, is_new, amount, JobPlace(5, number))


@attrs.define
class World:
    """Whatever polls stand on. Looks, leases and waits are answered one after the other, the last again and again."""

    peeks: list[Peek | None] = attrs.field(factory=lambda: [SOMETHING])
    leases: list[list[HeldJob]] = attrs.field(factory=lambda: [[]])
    wakes: list[bool] = attrs.field(factory=lambda: [False])
    offers: list[tuple[list[Any], bool]] = attrs.field(factory=lambda: [([], False)])
    funds: list[Any] = attrs.field(factory=lambda: [Funds({POOR: 5, RICH: 100}, set())])
    head_at: JobPlace = START
    snapshot: Snapshot = HERE
    now: float = 1000.0
    wait_takes: float | None = None  # None: until the end of each
    closed: bool = False
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
        return self.snapshot, {ask.poller: jobs for ask in asks}

    async def hold_back(self, _: Any, jobs: list[bytes]) -> None:
        self.log.append(("held back", jobs))

    async def hold_back_beyond(self, _: Any, owner: bytes, balance: int) -> None:
        self.log.append(("held back beyond", owner, balance))

    # --- hints and attendance
    def head(self, model_id: int) -> JobPlace:
        assert model_id == KEY.model_id
        return self.head_at

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


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    one = World()
    monkeypatch.setattr(leases_sql, "poll", one.lease)
    monkeypatch.setattr(leases_sql, "hold_back", one.hold_back)
    monkeypatch.setattr(leases_sql, "hold_back_beyond", one.hold_back_beyond)
    monkeypatch.setattr(polls, "Liveness", lambda *_: one)
    monkeypatch.setattr(polls, "PollHints", lambda *_: one)
    monkeypatch.setattr(anyio, "current_time", lambda: one.now)
    return one


def of(world: World, *, waits: bool = True, offers: bool = False) -> Polls:
    any_of: Any = world
    token: Any = _Token(world.read_funds)
    places: Any = _Places(world.has_room, world.held_place)

    async def custody(_: Any) -> int:
        return 6

    return Polls(
        any_of,
        Funding(token, any_of),
        any_of,
        lease_ms=15_000,
        liveness_ms=20_000,
        custody=custody,
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


# --- one look ---------------------------------------------------------------------------------------------------


async def test_poll_notes_that_the_provider_lives_and_leases_what_it_may_claim(world: World) -> None:
    world.leases = [[held(1), held(2, is_new=False)]]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.rows] == [1, 2]
    assert (leased.snapshot, leased.pending) == (HERE, None)
    assert world.told("live") == [(KEY, 2)]
    assert world.told("lease") == [([(4, 1, 2, START)], JobFilter(), 15_000, 6)]
    assert world.told("leased") == [(1, [1, 2])]


async def test_poll_for_which_there_is_nothing_leases_nothing(world: World) -> None:
    world.peeks = [NOTHING]
    assert await looked(world) == Leased(HERE, [])
    assert (world.told("live"), world.told("lease")) == ([(KEY, 2)], [])


async def test_model_that_nobody_knows_is_refused_before_anything_is_noted(world: World) -> None:
    for peek in (None, attrs.evolve(NOTHING, known_model=False)):
        world.peeks = [peek]
        with pytest.raises(Refused, match="not in the catalogue") as refused:
            await looked(world)
        assert refused.value.param == "model"
    assert world.told("live") == []


async def test_where_bids_were_leased_a_moment_ago_no_look_is_taken_first(world: World) -> None:
    world.head_at = JobPlace(5, 5)
    await looked(world)
    assert world.told("peek") == []
    assert world.told("lease")[0][0] == [(4, 1, 2, JobPlace(5, 5))]


async def test_filters_are_those_of_the_poll_and_begin_at_the_oldest_job(world: World) -> None:
    world.head_at = JobPlace(5, 5)
    given = {"owner": RICH, "min_rate_in": 3, "min_rate_out": 4, "posted_before": 5}
    await looked(world, wanted=attrs.evolve(WANTED, **given))
    assert world.told("lease") == [([(4, 1, 2, START)], JobFilter(**given), 15_000, 6)]
    assert world.told("leased") == []  # what they leave aside is no news for others


async def test_asked_for_the_jobs_of_a_provider_a_poll_leases_none(world: World) -> None:
    await looked(world, wanted=attrs.evolve(WANTED, provider_id=4), pending=True)
    assert world.told("lease")[0][0] == [(4, 1, 0, START)]
    assert world.told("offers")[0][1] == 0


async def test_page_is_of_what_the_provider_holds(world: World) -> None:
    world.leases = [[held(number) for number in range(1, 7)]]
    found = await of(world).poll(US, WANTED, 2, 2, 3)
    assert isinstance(found, Leased)
    assert [row.job_id[0] for row in found.rows] == [4, 5]


async def test_polls_of_one_provider_at_a_time_are_one_request_of_the_larger_wish(world: World) -> None:
    both = of(world)
    async with anyio.create_task_group() as tasks:
        for free in (3, 5, 1):
            tasks.start_soon(both._leasing.take, Wish(KEY, free, JobFilter()))
        tasks.start_soon(both._leasing.take, Wish(PollKey(9, 1), 1, JobFilter()))
    assert [asks for asks, *_ in world.told("lease")] == [[(4, 1, 5, START), (9, 1, 1, START)]]


async def test_polls_with_filters_go_one_by_one(world: World) -> None:
    both = of(world)
    async with anyio.create_task_group() as tasks:
        for rate in (3, 4):
            tasks.start_soon(both._leasing.take, Wish(KEY, 1, JobFilter(min_rate_in=rate)))
    assert sorted(filters.min_rate_in for _, filters, *_ in world.told("lease")) == [3, 4]


@pytest.mark.parametrize(
    ("wanted", "param", "message"),
    [
        (JobFilter(), "state", "free needs state=Open; free needs model"),
        (JobFilter(state="Open"), "model", "free needs model"),
        (JobFilter(model_id=1), "state", "free needs state=Open"),
    ],
)
async def test_poll_has_to_be_for_the_open_jobs_of_a_model(
    world: World, wanted: JobFilter, param: str, message: str
) -> None:
    with pytest.raises(Refused) as refused:
        await of(world).poll(US, wanted, 1, 10, 0)
    assert (refused.value.param, str(refused.value)) == (param, message)


async def test_session_of_a_client_is_not_enough(world: World) -> None:
    client = SessionRow(b"\x01" * 20, None)
    told = await of(world).poll(client, WANTED, 1, 10, 0)
    also, lasted = await of(world).poll_and_wait(client, WANTED, 1, 10, 0, seconds=9, caller="us")
    assert told == also == NotSigned("authentication_error", "not_registered", "free needs a provider session")
    assert (lasted, world.log) == (0.0, [])


# --- unpaid jobs ------------------------------------------------------------------------------------------------


async def test_new_jobs_that_cannot_be_paid_are_held_back_and_replaced(world: World) -> None:
    world.leases = [[held(1, owner=POOR), held(2), held(3, is_new=False)], [held(2, is_new=False)]]
    world.funds = [Funds({POOR: 9, RICH: 100}, {bytes([2]) * 32})]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.rows] == [2]
    assert world.told("funds") == [([POOR, RICH], [1, 2])]  # of the new ones
    assert world.told("held back") == [([bytes([2]) * 32],)]
    assert world.told("held back beyond") == [(POOR, 9)]


async def test_owner_who_has_just_enough_is_not_poor(world: World) -> None:
    world.leases = [[held(1, owner=POOR)]]
    world.funds = [Funds({POOR: 10}, set())]
    await looked(world)
    assert len(world.told("lease")) == 1
    assert not world.told("held back") + world.told("held back beyond")


async def test_after_three_rounds_the_poll_is_given_what_it_holds(world: World) -> None:
    world.leases = [[held(1, owner=POOR)]]
    await looked(world)
    assert [asks for asks, *_ in world.told("lease")] == [[(4, 1, free, START)] for free in (2, 2, 2, 0)]


async def test_what_the_chain_said_counts_until_the_index_moves(world: World) -> None:
    token: Any = _Token(world.read_funds)
    any_of: Any = world
    funding = Funding(token, any_of)
    one, other = held(1), held(2)
    world.funds = [Funds({RICH: 100}, set()), Funds({}, {bytes([2]) * 32}), Funds({RICH: 50}, set())]
    assert await funding.of([one], HERE) == Funds({RICH: 100}, set())
    assert await funding.of([one], HERE) == Funds({RICH: 100}, set())
    assert await funding.of([one, other], HERE) == Funds({RICH: 100}, {bytes([2]) * 32})
    assert await funding.of([one], NEXT) == Funds({RICH: 50}, set())
    assert world.told("funds") == [([RICH], [1]), ([], [2]), ([RICH], [1])]
    poor = held(3, owner=POOR)
    world.funds = [Funds({POOR: 5}, set())]
    await funding.of([one, poor], NEXT)
    assert world.told("funds")[-1] == ([POOR], [3])


@pytest.mark.parametrize("silence", [None, Retryable("chain_unreachable", "away")])
async def test_node_that_does_not_answer_delays_no_poll_and_is_left_alone_for_a_while(
    world: World, silence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "_PATIENCE", 0.01)
    token: Any = _Token(world.read_funds)
    any_of: Any = world
    funding = Funding(token, any_of)
    world.funds = [silence, Funds({RICH: 5}, set())]
    assert not await funding.hold_back_unpaid([held(1)], HERE)
    world.now += 4.9
    assert not await funding.hold_back_unpaid([held(1)], HERE)
    assert len(world.told("funds")) == 1
    world.now += 0.1
    assert await funding.hold_back_unpaid([held(1)], HERE)


# --- waiting ----------------------------------------------------------------------------------------------------


async def test_poll_waits_until_its_time_is_over_and_is_live_meanwhile(world: World) -> None:
    world.peeks = [NOTHING]
    leased, lasted = await waited(world)
    assert (leased, lasted) == (Leased(HERE, []), 25.0)
    assert world.told("wait") == [(25.0,)]
    assert (world.told("live"), world.told("stays")) == ([(KEY, 2)], [(KEY, 2)])  # noted once
    assert (world.told("place"), world.told("waits")) == ([("us", "poll")], [(KEY, 2, False)])


async def test_poll_looks_again_by_itself_while_others_hold_jobs(world: World) -> None:
    world.peeks = [OTHERS]
    _, lasted = await waited(world, seconds=5)
    assert (world.told("wait"), lasted) == ([(2.0,), (2.0,), (1.0,)], 5.0)


async def test_poll_that_is_woken_is_given_what_there_is(world: World) -> None:
    world.peeks, world.leases, world.wakes, world.wait_takes = [NOTHING, SOMETHING], [[held(1)]], [True], 3.0
    leased, lasted = await waited(world)
    assert ([row.job_id[0] for row in leased.rows], lasted) == ([1], 3.0)
    assert world.told("passed on") == []


async def test_what_was_not_for_the_poll_that_was_woken_is_passed_on(world: World) -> None:
    """Its filters, say: jobs are there, and it comes away with none."""
    world.peeks, world.wakes, world.wait_takes = [NOTHING, SOMETHING], [True, False], 10.0
    await waited(world)
    assert len(world.told("passed on")) == 1  # by the wake, and not by the look of its own


async def test_poll_that_finds_something_at_once_does_not_wait(world: World) -> None:
    world.leases = [[held(1)]]
    _, lasted = await waited(world)
    assert (lasted, world.told("wait")) == (0.0, [])


@pytest.mark.parametrize("more", [{"seconds": 0}, {"free": 0}, {"caller": "somebody without a place"}])
async def test_poll_without_time_room_or_place_is_answered_at_once(world: World, more: dict[str, Any]) -> None:
    world.peeks = [NOTHING]
    assert (await waited(world, **more))[1] == 0.0
    assert (await waited(world, of=of(world, waits=False)))[1] == 0.0
    assert (world.told("wait"), world.told("place")) == ([], [])


async def test_poll_is_answered_when_the_process_stops(world: World) -> None:
    world.peeks, world.closed = [NOTHING], True
    assert (await waited(world))[1] == 0.0


# --- jobs whose post is under way -------------------------------------------------------------------------------


async def test_offers_are_for_polls_that_ask_and_for_the_room_that_leases_leave(world: World) -> None:
    world.leases, world.offers = [[held(1)]], [(["a job"], False)]
    leased = await looked(world, free=3, pending=True)
    assert (leased.pending, len(leased.rows)) == (["a job"], 1)
    assert world.told("offers") == [(KEY, 2, WANTED)]
    assert (await of(world).poll(US, WANTED, 3, 10, 0, pending=True)).pending is None  # type: ignore[union-attr]


async def test_offer_ends_a_wait_and_one_that_was_not_for_the_poll_is_passed_on(world: World) -> None:
    world.peeks, world.wakes, world.wait_takes = [NOTHING], [True], 1.0
    world.offers = [([], False), ([], True), (["a job"], False)]
    leased, lasted = await waited(world, pending=True)
    assert (leased.pending, lasted) == (["a job"], 2.0)
    assert (len(world.told("offer passed on")), world.told("waits")) == (1, [(KEY, 2, True)])
