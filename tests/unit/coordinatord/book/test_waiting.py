"""Polls that wait: a new job wakes as many matching polls as the job needs, and no others."""

from contextlib import ExitStack

import pytest

from common.api.events import OUTCOME_BY_EVENT, EventKind
from coordinatord.api.book.leases_sql import PollKey
from coordinatord.api.book.waiting import WaitingPoll, WaitingPolls
from coordinatord.api.events.events_sql import LoggedEvent

pytestmark = pytest.mark.anyio


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
