"""Compute a discount on the published ask, so that an idle machine accepts lower bids than a busy one.

The discount grows slowly while the load is low, and ends at once when the machine is busy. The published ask stays the
same. The discount only decides which bids below the ask are accepted.
"""

import attrs

from svcd.base import metrics


@attrs.frozen(slots=True)
class AskRates:
    """Prices per 10^6 units."""

    rate_in: int
    rate_out: int


@attrs.define(slots=True)
class Discount:
    """Discount that grows from 0 to `max_percent` within `ramp_seconds` without load.

    The load limits the discount: the limit falls linearly to 0 at a load of `busy_load`. With `max_percent` 0, the
    discount is always 0.
    """

    model: str
    max_percent: int = attrs.field(validator=attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(100)))
    ramp_seconds: float = attrs.field(default=600.0, validator=attrs.validators.gt(0))
    busy_load: float = attrs.field(default=0.8, validator=attrs.validators.gt(0))
    _percent: float = 0.0
    _observed_at: float | None = None

    def __attrs_post_init__(self) -> None:
        self._update_metric()

    @property
    def percent(self) -> int:
        """Return the discount in whole percent, which is also the metric's value."""
        return int(self._percent)

    def observe(self, load: float, now: float) -> None:
        """Update the discount with a load from 0 to 1. `now` is a monotonic time."""
        elapsed = 0.0 if self._observed_at is None else max(0.0, now - self._observed_at)
        self._observed_at = now
        allowed = self.max_percent * max(0.0, 1 - load / self.busy_load)
        grown = self._percent + self.max_percent * elapsed / self.ramp_seconds
        self._percent = min(grown, allowed)
        self._update_metric()

    def lowest_rates(self, ask: AskRates) -> AskRates:
        """Return the lowest accepted rates for an ask, rounded up so that the discount never exceeds `percent`."""
        return AskRates(self._discount_rate(ask.rate_in), self._discount_rate(ask.rate_out))

    def _discount_rate(self, rate: int) -> int:
        return -(-rate * (100 - self.percent) // 100)

    def _update_metric(self) -> None:
        metrics.bid_floor_discount.labels(self.model).set(self.percent)
