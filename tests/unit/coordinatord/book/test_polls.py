"""Polls: the transactions that lease, waiting for jobs and offers, and what a poll returns."""

from contextlib import ExitStack
from typing import Any

import anyio
import attrs
import pytest

from common.api.events import OUTCOME_BY_EVENT, EventKind
from common.refusal import Refused
from coordinatord.api.book.job_pages_sql import JobFilter
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.polls import PollAnswer, build_poll
from coordinatord.api.book.waiting import WaitingPoll, WaitingPolls
from coordinatord.api.events.events_sql import LoggedEvent
from coordinatord.base.outcomes import SessionRow, Unauthorised
from tests.unit.coordinatord.book.polling import (
    FREE,
    HELD_BY_OTHERS,
    HERE,
    KEY,
    NOTHING,
    OFFERED,
    POOR,
    RICH,
    US,
    WANTED,
    World,
    held,
    looked,
    of,
    poll_of,
    waited,
)


async def test_poll_records_liveness_and_leases_jobs(world: World) -> None:
    world.leases = [[held(1), held(2, is_new=False)]]
    leased = await looked(world)
    assert [row.job_id[0] for row in leased.jobs] == [1, 2]
    assert (leased.snapshot, leased.offers) == (HERE, None)
    assert world.told("live") == [(KEY, 2)]
    assert world.told("lease") == [(KEY, 2, WANTED, 15_000)]


async def test_poll_for_which_there_is_nothing_leases_nothing(world: World) -> None:
    world.outlooks = [NOTHING]
    assert await looked(world) == PollAnswer(HERE, [])
    assert (world.told("live"), world.told("lease")) == ([(KEY, 2)], [])


async def test_unknown_model_is_refused_before_any_write(world: World) -> None:
    world.outlooks = [attrs.evolve(NOTHING, known_model=False)]
    with pytest.raises(Refused, match="id of a model in the catalogue") as refused:
        await looked(world)
    assert refused.value.param == "model"
    assert world.told("live") == []


async def test_filters_are_those_of_the_poll(world: World) -> None:
    wanted = attrs.evolve(WANTED, owner=RICH, min_rate_in=3, min_rate_out=4, posted_before=5)
    await looked(world, wanted=wanted)
    assert world.told("lease") == [(KEY, 2, wanted, 15_000)]


async def test_poll_for_the_jobs_of_a_provider_leases_none(world: World) -> None:
    world.outlooks = [attrs.evolve(FREE, has_offers=True)]
    assert (await looked(world, wanted=attrs.evolve(WANTED, provider_id=4), wants_offers=True)).offers == []
    assert [free for _, free, _, _ in world.told("lease")] == [0]
    assert world.told("offers") == []


async def test_page_has_the_providers_leases(world: World) -> None:
    world.leases = [[held(number) for number in range(1, 7)]]
    found = await of(world).answer(poll_of(2, WANTED, 2, 3))
    assert [row.job_id[0] for row in found.jobs] == [4, 5]


@pytest.mark.parametrize(
    ("wanted", "param", "message"),
    [
        (JobFilter(), "state", "`free` requires `state=Open`; `free` requires `model`"),
        (JobFilter(state="Open"), "model", "`free` requires `model`"),
        (JobFilter(model_id=1), "state", "`free` requires `state=Open`"),
    ],
)
async def test_poll_has_to_be_for_the_open_jobs_of_a_model(wanted: JobFilter, param: str, message: str) -> None:
    with pytest.raises(Refused) as refused:
        build_poll(US, wanted, 1, 10, 0)
    assert (refused.value.param, str(refused.value)) == (param, message)


async def test_session_of_a_client_is_not_enough() -> None:
    refused = Unauthorised("authentication_error", "not_registered", "`free` requires a session with role `provider`")
    assert build_poll(SessionRow(b"\x01" * 20, None), WANTED, 1, 10, 0) == refused


async def test_offers_go_to_polls_with_room_that_request_them(world: World) -> None:
    world.outlooks = [attrs.evolve(FREE, has_offers=True)]
    world.leases, world.offers = [[held(1)]], [["a job"]]
    leased = await looked(world, free=3, wants_offers=True)
    assert (leased.offers, len(leased.jobs)) == (["a job"], 1)
    assert world.told("offers") == [(KEY, 2, WANTED)]
    assert (await looked(world, free=3)).offers is None
    assert len(world.told("offers")) == 1


async def test_waiting_poll_stays_live_until_its_end(world: World) -> None:
    world.outlooks = [NOTHING]
    leased, lasted = await waited(world)
    assert (leased, lasted) == (PollAnswer(HERE, []), 25.0)
    assert world.told("wait") == [(25.0,)]
    assert (world.told("live"), world.told("stays")) == ([(KEY, 2)], [(KEY, 2)])  # recorded once
    assert (world.told("place"), world.told("waits")) == ([("us", "poll")], [(KEY, 2, False)])


async def test_poll_looks_again_by_itself_while_others_hold_jobs(world: World) -> None:
    world.outlooks = [HELD_BY_OTHERS]
    _, lasted = await waited(world, seconds=5)
    assert (world.told("wait"), lasted) == ([(2.0,), (2.0,), (1.0,)], 5.0)


async def test_woken_poll_returns_the_available_jobs(world: World) -> None:
    world.outlooks, world.leases, world.wakes, world.wait_takes = [NOTHING, FREE], [[held(1)]], [True], 3.0
    leased, lasted = await waited(world)
    assert ([row.job_id[0] for row in leased.jobs], lasted) == ([1], 3.0)
    assert (world.told("passed on"), world.told("looked")) == ([], [()])


async def test_jobs_unsuitable_for_the_woken_poll_are_passed_on(world: World) -> None:
    """The jobs exist, but the poll's filters exclude them, so it returns none."""
    world.outlooks, world.wakes, world.wait_takes = [NOTHING, FREE], [True, False], 10.0
    await waited(world)
    assert len(world.told("passed on")) == 1  # for the wake-up, not for the poll's own next look


async def test_missed_jobs_are_passed_on_after_the_time_is_over(world: World) -> None:
    world.outlooks, world.wakes = [NOTHING, FREE], [True]
    await waited(world)
    assert (len(world.told("wait")), len(world.told("passed on"))) == (1, 1)


async def test_poll_with_only_an_offer_passes_jobs_on(world: World) -> None:
    world.outlooks, world.wakes, world.wait_takes = [NOTHING, attrs.evolve(FREE, has_offers=True)], [True], 1.0
    world.offers = [["a job"]]
    leased, _ = await waited(world, wants_offers=True)
    assert (leased.offers, len(world.told("passed on"))) == (["a job"], 1)


async def test_poll_of_a_provider_without_room_passes_its_wake_on(world: World) -> None:
    world.outlooks, world.wakes = [attrs.evolve(FREE, may_claim=False, has_offers=True)], [True]
    await waited(world, seconds=2, wants_offers=True)
    assert (len(world.told("passed on")), len(world.told("offer passed on"))) == (1, 1)
    assert (world.told("lease"), world.told("offers")) == ([], [])


async def test_poll_without_wake_up_or_jobs_passes_nothing_on(world: World) -> None:
    for outlook, woken in ((attrs.evolve(FREE, has_offers=True), False), (NOTHING, True)):
        world.outlooks, world.wakes = [outlook], [woken]
        await waited(world, wants_offers=True)
    assert (world.told("passed on"), world.told("offer passed on")) == ([], [])


async def test_poll_that_leaves_jobs_looks_again_by_itself(world: World) -> None:
    """Jobs were left, for example because others lease them or because the poll was at its capacity. Either can
    change without a wake-up."""
    await waited(world, seconds=3)
    assert world.told("wait") == [(2.0,), (1.0,)]


async def test_poll_that_finds_something_at_once_does_not_wait(world: World) -> None:
    world.leases = [[held(1)]]
    _, lasted = await waited(world)
    assert (lasted, world.told("wait")) == (0.0, [])


@pytest.mark.parametrize("more", [{"seconds": 0}, {"free": 0}, {"caller": "somebody without a place"}])
async def test_poll_without_time_room_or_place_is_answered_at_once(world: World, more: dict[str, Any]) -> None:
    world.outlooks = [NOTHING]
    assert (await waited(world, **more))[1] == 0.0
    assert (world.told("wait"), world.told("place")) == ([], [])


async def test_poll_is_answered_when_the_process_stops(world: World) -> None:
    world.outlooks, world.closed = [NOTHING], True
    assert (await waited(world))[1] == 0.0


async def test_offer_ends_a_wait_and_a_foreign_one_is_passed_on(world: World) -> None:
    world.outlooks, world.wakes, world.wait_takes = [NOTHING, OFFERED], [True], 1.0
    world.offers = [[], ["a job"]]
    leased, lasted = await waited(world, wants_offers=True)
    assert (leased.offers, lasted) == (["a job"], 2.0)
    assert (len(world.told("offer passed on")), world.told("waits")) == (1, [(KEY, 2, True)])


async def test_two_transactions_run_at_a_time(world: World) -> None:
    world.answers = anyio.Event()
    polls = of(world)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(polls.answer, poll_of())
        await anyio.wait_all_tasks_blocked()
        assert len(world.told("lease")) == 2
        world.answers.set()
    assert len(world.told("lease")) == 4


async def test_polls_of_a_moment_share_one_read(world: World) -> None:
    polls = of(world)
    async with anyio.create_task_group() as tasks:
        for model in (1, 2, 3):
            tasks.start_soon(polls.answer, poll_of(wanted=attrs.evolve(WANTED, model_id=model)))
    assert [len(pollers) for pollers in world.told("outlook")] == [3]


async def test_poll_returns_its_leases_after_three_rounds(world: World) -> None:
    world.leases = [[held(1, owner=POOR)]]
    await looked(world)
    assert [free for _, free, _, _ in world.told("lease")] == [2, 2, 2, 0]


def event(
    kind: EventKind, *, model: int = 1, provider: int = 0, designated: int = 0, back: bool = False
) -> LoggedEvent:
    state, because = OUTCOME_BY_EVENT[kind]
    return LoggedEvent(
        9, kind, 1, 1, b"j", b"o", model, provider, designated, state, because, taken_back_id=4 if back else None
    )


async def woken(polls: list[WaitingPoll]) -> list[int]:
    """Return the providers of woken polls, and mark them as not woken."""
    return [poll.poller.provider_id for poll in polls if await poll.wait(0)]


def enter(stack: ExitStack, waiting: WaitingPolls, *pollers: tuple[int, int, int]) -> list[WaitingPoll]:
    return [stack.enter_context(waiting.register(PollKey(who, model), free)) for who, model, free in pollers]


async def test_new_bids_wake_the_first_polls_that_fit() -> None:
    waiting = WaitingPolls()
    with ExitStack() as stack:
        polls = enter(stack, waiting, (1, 1, 2), (2, 1, 2), (3, 1, 1), (4, 2, 9))
        waiting.on_events([event(EventKind.POSTED)] * 3)
        assert await woken(polls) == [1, 2]
        waiting.on_events([event(EventKind.POSTED, model=2)])
        assert await woken(polls) == [4]


async def test_empty_handed_poll_wakes_the_next_once() -> None:
    waiting = WaitingPolls()
    with ExitStack() as stack:
        polls = enter(stack, waiting, (1, 1, 1), (2, 1, 1))
        waiting.on_events([event(EventKind.POSTED)])
        assert await woken(polls) == [1]
        waiting.wake_another(polls[0])
        assert await woken(polls) == [2]
        waiting.wake_another(polls[1])
        assert await woken(polls) == []
        waiting.on_events([event(EventKind.POSTED)])
        assert await woken(polls) == [1]


@pytest.mark.parametrize("awake", [False, True], ids=["woken", "about to look"])
async def test_poll_that_leaves_before_it_has_looked_wakes_the_next(*, awake: bool) -> None:
    """The caller hung up. Without passing on the wake-up, a poll that waits long and leaves when woken would block all
    others."""
    waiting = WaitingPolls()
    with ExitStack() as stack:
        with waiting.register(PollKey(1, 1), 1) as first:
            second, third = (
                stack.enter_context(waiting.register(PollKey(who, 1), 1, wants_offers=who == 3)) for who in (2, 3)
            )
            waiting.on_events([event(EventKind.POSTED)])
            waiting.wake_for_offer(1, 0)  # only the third poll accepts pending jobs
            if awake:
                assert await first.wait(0)
        assert [await poll.wait(0) for poll in (second, third)] == [True, True]


async def test_offer_that_was_not_looked_at_is_the_next_ones() -> None:
    waiting = WaitingPolls()
    with ExitStack() as stack:
        with waiting.register(PollKey(1, 1), 1, wants_offers=True):
            other = stack.enter_context(waiting.register(PollKey(2, 1), 1, wants_offers=True))
            waiting.wake_for_offer(1, 0)
        assert await other.wait(0)


async def test_poll_that_looked_or_heard_nothing_wakes_no_other() -> None:
    waiting = WaitingPolls()
    with ExitStack() as stack:
        with waiting.register(PollKey(1, 1), 1) as first, waiting.register(PollKey(2, 1), 1):
            other = stack.enter_context(waiting.register(PollKey(3, 1), 1))
            waiting.on_events([event(EventKind.POSTED)])
            assert await first.wait(0)
            first.mark_searched()
        assert not await other.wait(0)


@pytest.mark.parametrize(
    ("heard", "who"),
    [
        (event(EventKind.POSTED, designated=2), [2]),
        (event(EventKind.CLAIMED, provider=1), []),
        (event(EventKind.CLAIMED, provider=1, back=True), [1]),  # open again, for any provider
        (event(EventKind.EXPIRED, back=True), [1]),
        (event(EventKind.POSTED, back=True), []),
        (event(EventKind.SETTLED, provider=2), [2]),  # the provider may have been at its capacity
        (event(EventKind.SETTLED, provider=2, back=True), [1]),
        (LoggedEvent(9, EventKind.RESET, 1, 1), [1, 2]),
    ],
)
async def test_event_wakes_the_polls_it_concerns(heard: LoggedEvent, who: list[int]) -> None:
    waiting = WaitingPolls()
    with ExitStack() as stack:
        polls = enter(stack, waiting, (1, 1, 1), (2, 1, 1))
        waiting.on_events([heard])
        assert await woken(polls) == who


async def test_a_stop_wakes_all_and_a_poll_that_has_gone_is_forgotten() -> None:
    waiting = WaitingPolls()
    with ExitStack() as stack:
        polls = enter(stack, waiting, (1, 1, 1), (2, 2, 1))
        waiting.on_events([])
        assert waiting.closed
        assert await woken(polls) == [1, 2]
    assert not waiting._by_model
    assert not waiting._by_provider


async def test_news_between_a_look_and_the_wait_ends_the_wait_at_once() -> None:
    waiting = WaitingPolls()
    with waiting.register(PollKey(1, 1), 1) as poll:
        waiting.on_events([event(EventKind.POSTED)])
        assert await poll.wait(60)
        assert not await poll.wait(0.01)
