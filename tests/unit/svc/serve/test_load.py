"""Load of providers: which one gets the next job, how long a claim may take, and which one is tried last."""

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import pytest

from common.daemon import supervision
from svc.core.bids import Bid, Rates
from svc.records import Provider
from svc.serve import attempts
from svc.serve.files import LocalFiles
from svc.serve.load import ProviderLoad
from svc.serve.prices import Prices
from tests.support.faults.foreign_errors import ForeignErrors
from tests.unit.svc.fake_coordinator import provider
from tests.unit.svc.serve.market import ServedMarket

CHEAP, DEAR, DEAREST = Bid(Rates(100, 200), 1), Bid(Rates(150, 300), 2), Bid(Rates(300, 600), 3)


@attrs.define
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def load(premium: float = 2.0, clock: Clock | None = None) -> ProviderLoad:
    return ProviderLoad(premium, 30.0, 600.0, clock or Clock())


def reported(number: int, capacity: int, active: int = 0) -> Provider:
    changed: dict[str, Any] = {"provider_id": number, "capacity": capacity, "active_jobs": active}
    known = {name: value for name, value in provider().items() if name != "as_of_block"}
    return Provider(**{**known, **changed})


def first(seen: ProviderLoad, *bids: Bid) -> int:
    return seen.sort(bids)[0].designated


def test_cheapest_is_filled_before_the_next() -> None:
    seen = load()
    seen.update(reported(1, capacity=3, active=1))
    given = []
    for _ in range(4):
        given.append(first(seen, CHEAP, DEAR))
        seen.on_chosen(given[-1])
    assert given == [1, 1, 2, 2]
    seen.on_ended(1, claimed=False)
    assert first(seen, CHEAP, DEAR) == 1


def test_own_jobs_that_the_market_counts_are_not_counted_twice() -> None:
    seen = load()
    for _ in range(2):
        seen.on_chosen(1)
        seen.on_claimed(1, 1.0)
    seen.update(reported(1, capacity=3, active=2))
    assert seen.has_room([1])
    seen.on_chosen(1)
    assert not seen.has_room([1])


def test_no_more_than_the_premium_is_paid_for_room() -> None:
    for premium, on_chosen in ((2.0, 2), (1.0, 1)):
        seen = load(premium)
        seen.update(reported(1, capacity=1, active=1))
        assert first(seen, CHEAP, DEAR, DEAREST) == on_chosen
    seen = load(2.0)
    for number in (1, 2):
        seen.update(reported(number, capacity=1, active=1))
    assert first(seen, CHEAP, DEAR, DEAREST) == 1  # three times the price is too much, so wait for the cheapest


def test_overflow_goes_to_the_shortest_queue() -> None:
    seen, given = load(), []
    seen.update(reported(1, capacity=2))
    seen.update(reported(2, capacity=4))
    for _ in range(12):
        given.append(first(seen, CHEAP, DEAR))
        seen.on_chosen(given[-1])
    assert (given.count(1), given.count(2)) == (4, 8)


def test_equal_prices_share_jobs_without_known_room() -> None:
    seen, given = load(), []
    bids = [attrs.evolve(CHEAP, designated=number) for number in (4, 5, 6)]
    for _ in range(6):
        given.append(first(seen, *bids))
        seen.on_chosen(given[-1])
    assert sorted(given) == [4, 4, 5, 5, 6, 6]


def test_failed_provider_is_last_and_slow_one_returns_soon() -> None:
    clock = Clock()
    for unclaimed, seconds in ((True, 60), (False, 600)):
        seen = load(clock=clock)
        seen.exclude(1, unclaimed=unclaimed)
        assert first(seen, CHEAP, DEAREST) == 3  # provider 1 is excluded for as long
        clock.now += seconds + 1
        assert first(seen, CHEAP, DEAREST) == 1


def test_claim_timeout_follows_usual_times_up_to_the_maximum() -> None:
    seen = load()
    assert seen.claim_timeout(1) == 30
    seen.on_claimed(1, 2.0)
    assert seen.claim_timeout(1) == 8
    for _ in range(20):
        seen.on_claimed(1, 0.1)
    assert seen.claim_timeout(1) == 3
    seen.on_claimed(2, 100.0)
    assert seen.claim_timeout(2) == 30


def test_times_of_a_job_of_before_a_restart_are_not_learned_from() -> None:
    seen = load()
    seen.on_claimed(1, None)
    assert seen.claim_timeout(1) == 30


QUIET_ROUNDS: Final = 3  # rounds without a new place, after which all places count as reached
CHAT: Final = "/v1/chat/completions"
# saved, because other tests of this folder disable them
KEEP_WARM, SWEEP_FOREVER = Prices.refresh_repeatedly, LocalFiles.remove_expired_repeatedly


async def test_foreign_errors_end_neither_server_nor_loop(
    market: ServedMarket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = ForeignErrors("svc", apart_seconds=0.0)
    running = Counter[str]()

    class Watching(supervision.Supervisor):
        def watched(self, task: str, work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
            async def counted() -> Any:
                running[task] += 1
                try:
                    return await work()
                finally:
                    running[task] -= 1

            return errors.watch(task, counted)

        async def run(self, task: str, loop: Callable[[], Awaitable[Any]]) -> Any:
            return await super().run(task, self.watched(task, loop))

        async def run_once(self, task: str, work: Callable[[], Awaitable[object]]) -> None:
            await super().run_once(task, self.watched(task, work))

    monkeypatch.setattr(attempts, "Supervisor", Watching)
    monkeypatch.setattr(Prices, "refresh_repeatedly", KEEP_WARM)
    monkeypatch.setattr(LocalFiles, "remove_expired_repeatedly", SWEEP_FOREVER)
    async with market.served(tmp_path) as caller:
        quiet, number = 0, 0
        while quiet < QUIET_ROUNDS:
            before, number = len(errors.raised), number + 1
            question = {"model": "demo/chat", "messages": [{"role": "user", "content": f"number {number}"}]}
            answer = await caller.post(CHAT, question)
            assert answer.status in (200, 500, 502, 503), answer
            quiet = quiet + 1 if len(errors.raised) == before else 0
        await anyio.sleep(600)  # both loops reach their places
        errors.enabled = False
        question = {"model": "demo/chat", "messages": [{"role": "user", "content": "the last"}]}
        assert (await caller.post(CHAT, question)).status == 200
        assert {task for task, _ in errors.raised} >= {"purchase", "attempt", "prices", "expired files"}
        assert (running["prices"], running["expired files"]) == (1, 1)
