"""Discount under the published ask: an idle machine earns nothing, so it accepts less, and a busy one does not.

The discount grows slowly while the load leaves room, and ends at once when none is left. The published ask stays the
same. The discount only decides which bids below it are accepted.
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
    """`most_percent` is the operator's floor (0 takes jobs at configured rates only), reached after `ramp_seconds`
    without load. At a load of `busy_at` and above there is none; in between the most allowed falls in a line."""

    model: str
    most_percent: int = attrs.field(validator=attrs.validators.and_(attrs.validators.ge(0), attrs.validators.le(100)))
    ramp_seconds: float = attrs.field(default=600.0, validator=attrs.validators.gt(0))
    busy_at: float = attrs.field(default=0.8, validator=attrs.validators.gt(0))
    _percent: float = 0.0
    _since: float | None = None

    def __attrs_post_init__(self) -> None:
        self._show()

    @property
    def percent(self) -> int:
        """Whole percents, as the metric shows them: what is claimed for is what can be seen."""
        return int(self._percent)

    def observe(self, load: float, now: float) -> None:
        """A reading of the load (0 to 1) at a moment of a clock that does not go back."""
        elapsed = 0.0 if self._since is None else max(0.0, now - self._since)
        self._since = now
        allowed = self.most_percent * max(0.0, 1 - load / self.busy_at)
        grown = self._percent + self.most_percent * elapsed / self.ramp_seconds
        self._percent = min(grown, allowed)
        self._show()

    def floor(self, ask: AskRates) -> AskRates:
        """The lowest rates that the next poll asks for; rounded up, so that never more is given than is shown."""
        return AskRates(self._discounted(ask.rate_in), self._discounted(ask.rate_out))

    def _discounted(self, rate: int) -> int:
        return -(-rate * (100 - self.percent) // 100)

    def _show(self) -> None:
        metrics.bid_floor_discount.labels(self.model).set(self.percent)
