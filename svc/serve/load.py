"""Load of each provider: this server's jobs, free capacity, the time until a claim, and recent failures.

The cheapest provider gets as many jobs as it has capacity for. The next cheapest get the rest, if their price is within
the configured premium. Free capacity is the capacity in the market's report, less the jobs of other buyers and of this
server. This server's jobs are counted at once, so that parallel requests do not all choose the same provider.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from svc.core.bids import OPEN_PROVIDER, Bid
from svc.records import Provider

_SMOOTHING_WEIGHT: Final = 0.3  # weight of the newest claim in the moving average
_LATE_CLAIM_FACTOR: Final = 4.0  # a claim is late after this many times the average
_MIN_CLAIM_TIMEOUT_S: Final = 3.0
_UNCLAIMED_EXCLUSION_S: Final = 60.0  # short, because the provider may only be busy


@attrs.define
class _ProviderState:
    """Load of one provider, with its `capacity` once the market has reported it.

    `running_jobs`: jobs of this server, counted from the choice of the provider. `claimed_jobs`: the running jobs that
    the provider has claimed.
    """

    running_jobs: int = 0
    claimed_jobs: int = 0
    capacity: int | None = None
    other_buyers_jobs: int = 0
    average_claim_seconds: float | None = None
    excluded_until: float = float("-inf")

    @property
    def has_room(self) -> bool:
        return self.capacity is None or self.other_buyers_jobs + self.running_jobs < self.capacity

    @property
    def load_ratio(self) -> float:
        return (self.other_buyers_jobs + self.running_jobs) / max(1, self.capacity or 1)


@attrs.define(eq=False)
class ProviderLoad:
    """Counts the load of each provider, and sorts bids by price, free capacity and recent failures.

    `max_premium`: highest multiple of the best price that may be paid. `monotonic`: clock by which exclusions end.
    """

    max_premium: float
    claim_seconds: float
    exclude_seconds: float
    monotonic: Callable[[], float]
    _states: dict[int, _ProviderState] = attrs.field(factory=dict)

    def state_of(self, provider: int) -> _ProviderState:
        return self._states.setdefault(provider, _ProviderState())

    def sort(self, bids: Sequence[Bid]) -> list[Bid]:
        """Return the bids, best first. `bids` are sorted by price."""
        now, ranks, rank = self.monotonic(), [], 0
        for index, bid in enumerate(bids):
            rank += index > 0 and bid.rates != bids[index - 1].rates
            ranks.append(rank)
        affordable = self._affordable_providers(bids)

        def key(index: int) -> tuple[bool, bool, bool, float, float]:
            state, too_expensive = self.state_of(bids[index].designated), bids[index].designated not in affordable
            by_price, by_load = (ranks[index], state.load_ratio), (state.load_ratio, ranks[index])
            # Sort affordable providers without free capacity by load, and all other providers by price.
            order = by_price if too_expensive or state.has_room else by_load
            return state.excluded_until > now, too_expensive, not state.has_room, *order

        return [bids[index] for index in sorted(range(len(bids)), key=key)]

    def _affordable_providers(self, bids: Sequence[Bid]) -> frozenset[int]:
        if not bids:
            return frozenset()
        now = self.monotonic()
        prices = {bid.designated: bid.rates.rate_in + bid.rates.rate_out for bid in bids}
        available = [price for provider, price in prices.items() if self.state_of(provider).excluded_until <= now]
        max_price = min(available or prices.values()) * self.max_premium
        return frozenset(provider for provider, price in prices.items() if price <= max_price)

    def has_room(self, providers: Iterable[int]) -> bool:
        now = self.monotonic()
        return any(self.state_of(each).has_room and self.state_of(each).excluded_until <= now for each in providers)

    def claim_timeout(self, provider: int) -> float:
        """Return the seconds after which a claim of this provider is late, at most `claim_seconds`."""
        average = self.state_of(provider).average_claim_seconds
        late = self.claim_seconds if average is None else max(_MIN_CLAIM_TIMEOUT_S, _LATE_CLAIM_FACTOR * average)
        return min(self.claim_seconds, late)

    def on_chosen(self, provider: int) -> None:
        self.state_of(provider).running_jobs += 1

    def on_claimed(self, provider: int, seconds: float | None) -> None:
        """Count a claim. `seconds` is the time from the post to the claim, if it is known."""
        state = self.state_of(provider)
        state.claimed_jobs += 1
        if seconds is not None:
            average = state.average_claim_seconds
            state.average_claim_seconds = (
                seconds if average is None else average + _SMOOTHING_WEIGHT * (seconds - average)
            )

    def on_ended(self, provider: int, *, claimed: bool) -> None:
        state = self.state_of(provider)
        state.running_jobs -= 1
        state.claimed_jobs -= claimed

    def exclude(self, provider: int, *, unclaimed: bool) -> None:
        """Make a provider the last choice for a while.

        `unclaimed`: the provider only failed to claim a job in time, so the time is shorter.
        """
        if provider != OPEN_PROVIDER:
            seconds = min(self.exclude_seconds, _UNCLAIMED_EXCLUSION_S) if unclaimed else self.exclude_seconds
            self.state_of(provider).excluded_until = self.monotonic() + seconds

    def update(self, reported: Provider) -> None:
        """Store the reported capacity, and the number of jobs of other buyers."""
        state = self.state_of(reported.provider_id)
        state.capacity, state.other_buyers_jobs = reported.capacity, max(0, reported.active_jobs - state.claimed_jobs)
