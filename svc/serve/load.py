"""Load of each provider as seen from here: our jobs there, its room, how soon it claims, whether it failed lately.

The cheapest provider is given what it has room for, the next one the rest, within the premium that the settings allow.
Room is what the market says of a provider (jobs that it may hold, less those that others gave it) less our own jobs
there, so that requests that come at the same time are not all given to one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import attrs

from svc.core.bids import OPEN, Bid
from svc.records import Provider

_SMOOTHING: Final = 0.3  # share of the newest claim in what is usual
_USUALLY: Final = 4.0  # times the usual wait for a claim, after which it is not usual any more
_LEAST_SECONDS: Final = 3.0
_UNCLAIMED_SECONDS: Final = 60.0  # one that was too busy for a claim is soon asked again


@attrs.define
class _Seen:
    """`held`: jobs of ours, from the moment it is chosen until they end; `claimed`: those of them that it works on.
    `capacity` and `others` are None and 0 until the market was asked."""

    held: int = 0
    claimed: int = 0
    capacity: int | None = None
    others: int = 0
    usual: float | None = None
    excluded_until: float = float("-inf")

    @property
    def has_room(self) -> bool:
        return self.capacity is None or self.others + self.held < self.capacity

    @property
    def fullness(self) -> float:
        return (self.others + self.held) / max(1, self.capacity or 1)


@attrs.define(eq=False)
class ProviderLoad:
    """`premium`: how many times the best price may be paid for room. `monotonic` times exclusions."""

    premium: float
    claim_seconds: float
    exclude_seconds: float
    monotonic: Callable[[], float]
    _seen: dict[int, _Seen] = attrs.field(factory=dict)

    def of(self, provider: int) -> _Seen:
        return self._seen.setdefault(provider, _Seen())

    def order(self, bids: Sequence[Bid]) -> list[Bid]:
        """The best first. `bids` are in the order of their price."""
        now, ranks, rank = self.monotonic(), [], 0
        for at, bid in enumerate(bids):
            rank += at > 0 and bid.rates != bids[at - 1].rates
            ranks.append(rank)
        within = self._affordable(bids)

        def key(at: int) -> tuple[bool, bool, bool, float, float]:
            seen, dear = self.of(bids[at].designated), bids[at].designated not in within
            by_price, by_queue = (ranks[at], seen.fullness), (seen.fullness, ranks[at])
            # By price where there is room; where nobody has any, to the shortest queue among those of about one price.
            order = by_price if dear or seen.has_room else by_queue
            return seen.excluded_until > now, dear, not seen.has_room, *order

        return [bids[at] for at in sorted(range(len(bids)), key=key)]

    def _affordable(self, bids: Sequence[Bid]) -> frozenset[int]:
        if not bids:
            return frozenset()
        now = self.monotonic()
        prices = {bid.designated: bid.rates.rate_in + bid.rates.rate_out for bid in bids}
        good = [price for each, price in prices.items() if self.of(each).excluded_until <= now]
        most = min(good or prices.values()) * self.premium
        return frozenset(each for each, price in prices.items() if price <= most)

    def has_room(self, providers: Iterable[int]) -> bool:
        now = self.monotonic()
        return any(self.of(each).has_room and self.of(each).excluded_until <= now for each in providers)

    def patience(self, provider: int) -> float:
        """Seconds after which a claim of this provider is later than usual; `claim_seconds` at most."""
        usual = self.of(provider).usual
        late = self.claim_seconds if usual is None else max(_LEAST_SECONDS, _USUALLY * usual)
        return min(self.claim_seconds, late)

    # --- what happens to our jobs -----------------------------------------------------------------------------

    def chosen(self, provider: int) -> None:
        self.of(provider).held += 1

    def claimed(self, provider: int, seconds: float | None) -> None:
        """`seconds` since its post, where they are known."""
        seen = self.of(provider)
        seen.claimed += 1
        if seconds is not None:
            seen.usual = seconds if seen.usual is None else seen.usual + _SMOOTHING * (seconds - seen.usual)

    def ended(self, provider: int, *, claimed: bool) -> None:
        seen = self.of(provider)
        seen.held -= 1
        seen.claimed -= claimed

    def exclude(self, provider: int, *, unclaimed: bool) -> None:
        """The last choice for a while: one that failed, or, for less long, one that did not claim in time."""
        if provider != OPEN:
            seconds = min(self.exclude_seconds, _UNCLAIMED_SECONDS) if unclaimed else self.exclude_seconds
            self.of(provider).excluded_until = self.monotonic() + seconds

    def learn(self, told: Provider) -> None:
        """What the market says of it; our own jobs there are known better here."""
        seen = self.of(told.provider_id)
        seen.capacity, seen.others = told.capacity, max(0, told.active_jobs - seen.claimed)
