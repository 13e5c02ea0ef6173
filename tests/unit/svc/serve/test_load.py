"""Load of providers: which one gets the next job, how long a claim may take, and which one is tried last."""

from typing import Any

import attrs

from svc.core.bids import Bid, Rates
from svc.records import Provider
from svc.serve.load import ProviderLoad
from tests.unit.svc.fake_coordinator import provider

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
