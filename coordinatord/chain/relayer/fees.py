"""Fees that transactions offer, and when a pending transaction must offer more. All fees are in wei per gas."""

import statistics
from collections.abc import Sequence
from typing import Final

import attrs

# Nodes replace a pending transaction only if both fee fields rise: by a tenth on some nodes, by 12.5 % on most.
_BUMP_NUMERATOR: Final = 9
_BUMP_DENOMINATOR: Final = 8
_MAX_FEE_TO_MARKET_RATIO: Final = 10
_GWEI: Final = 10**9
_MAX_TIP_TO_MEDIAN_RATIO: Final = 3
_MAX_FORECAST_TO_HEADER_RATIO: Final = 8


@attrs.frozen(slots=True)
class Fee:
    """EIP-1559 fee: `max_fee` is the limit per gas, and `max_tip` the part of it for the block's producer."""

    max_fee: int
    max_tip: int


@attrs.frozen(slots=True)
class FeeMarket:
    """Base fee and tip that the next block requires."""

    base_fee: int
    tip: int


@attrs.frozen(slots=True)
class FeeCeiling:
    """Highest fee that is ever offered. None means no limit.

    A first offer uses at most half of the highest tip. A replacement must raise both fields, which would be impossible
    with the tip at its ceiling.
    """

    max_fee: int | None = None
    max_tip: int | None = None

    def limit_fee(self, fee: Fee) -> Fee:
        cap = fee.max_fee if self.max_fee is None else min(fee.max_fee, self.max_fee)
        tip = fee.max_tip if self.max_tip is None else min(fee.max_tip, self.max_tip // 2)
        return Fee(cap, min(tip, cap))

    def allows(self, fee: Fee) -> bool:
        return (self.max_fee is None or fee.max_fee <= self.max_fee) and (
            self.max_tip is None or fee.max_tip <= self.max_tip
        )

    def is_below(self, market: FeeMarket) -> bool:
        """Return True if the next block would not accept the highest allowed fee."""
        return self.max_fee is not None and not _covers_market(initial_fee(market, self), market)


NO_CEILING: Final = FeeCeiling()
DEVNET_CHAIN_IDS: Final = range(1_900_000_000, 2_000_000_000)
# Fees of a development chain are arbitrary.
_DEVELOPMENT_CEILING_GWEI: Final = (100_000, 10_000)
# (fee, tip) in gwei by chain id: far above usual fees, and far below a fee that empties an account.
_CEILINGS_GWEI: Final = {
    1: (500, 20),
    10: (10, 2),
    56: (50, 20),
    100: (200, 20),
    137: (5_000, 1_000),
    8453: (10, 2),
    17000: (1_000, 100),
    31337: _DEVELOPMENT_CEILING_GWEI,
    42161: (20, 2),
    43114: (1_000, 100),
    84532: (100, 10),
    421614: (100, 10),
    560048: (1_000, 100),
    11155111: (1_000, 100),
    11155420: (100, 10),
}


def fee_ceiling_for_chain(chain_id: int, fee_gwei: int | None, tip_gwei: int | None) -> FeeCeiling:
    """Return the ceiling from the settings, with the chain's default for missing values. An unknown chain has no
    default, so missing values mean no limit."""
    usual = _DEVELOPMENT_CEILING_GWEI if chain_id in DEVNET_CHAIN_IDS else _CEILINGS_GWEI.get(chain_id, (None, None))
    cap, tip = (own if own is not None else known for own, known in zip((fee_gwei, tip_gwei), usual, strict=True))
    return FeeCeiling(None if cap is None else cap * _GWEI, None if tip is None else tip * _GWEI)


def next_base_fee(base_fee: int, gas_used: int, gas_limit: int) -> int:
    """Return the base fee of the next block (EIP-1559)."""
    target = gas_limit // 2
    if target in (0, gas_used):
        return base_fee
    if gas_used > target:
        return base_fee + max(1, base_fee * (gas_used - target) // target // 8)
    return base_fee - base_fee * (target - gas_used) // target // 8


def plausible_tip(advised: int, rewards: Sequence[int], default_tip: int) -> int:
    """Limit the tip that a node advises to three times the median tip of recent blocks, or to `default_tip` if that is
    higher. If no recent block paid a tip, accept the advised tip."""
    paid = [reward for reward in rewards if reward > 0]
    if not paid:
        return advised
    return min(advised, max(_MAX_TIP_TO_MEDIAN_RATIO * int(statistics.median(paid)), default_tip))


def plausible_base_fee(computed: int, forecast: int) -> int:
    """Return the base fee computed from the header or the node's forecast, whichever is higher. The forecast is limited
    to eight times the computed fee, which can be too low: chains differ in how fast their base fee moves."""
    return max(computed, min(forecast, _MAX_FORECAST_TO_HEADER_RATIO * computed) if computed else forecast)


def initial_fee(market: FeeMarket, ceiling: FeeCeiling = NO_CEILING) -> Fee:
    """Return a fee that suffices for six full blocks, after which the base fee may have doubled."""
    return ceiling.limit_fee(Fee(2 * market.base_fee + market.tip, market.tip))


def replacement_fee(current: Fee, market: FeeMarket, *, refused: bool, ceiling: FeeCeiling = NO_CEILING) -> Fee | None:
    """Return the fee of a new version, or None while the current fee is enough or the ceiling allows no higher fee.
    `refused` is True if a node called the fee too low. A refusal of a fee far above the market is ignored."""
    wanted = initial_fee(market, ceiling)
    if _covers_market(current, market) and (
        not refused or current.max_fee >= _MAX_FEE_TO_MARKET_RATIO * wanted.max_fee
    ):
        return None
    raised = _raise_fee(current, wanted)
    return raised if ceiling.allows(raised) and not ceiling.is_below(market) else None


def self_transfer_fee(current: Fee, market: FeeMarket, *, ceiling: FeeCeiling = NO_CEILING) -> Fee:
    """Return the fee of a self-transfer that replaces bytes that no node accepts. The fee always rises, because a node
    may have an older version. A self-transfer uses so little gas that this one step may exceed the ceiling."""
    return _raise_fee(current, initial_fee(market, ceiling))


def _covers_market(fee: Fee, market: FeeMarket) -> bool:
    # Replace a waiting transaction only if its tip is below half of the usual tip, because each replacement adds a
    # version to every pool.
    return fee.max_fee >= market.base_fee + min(fee.max_tip, market.tip) // 2


def _raise_fee(current: Fee, target: Fee) -> Fee:
    return Fee(max(_bump_amount(current.max_fee), target.max_fee), max(_bump_amount(current.max_tip), target.max_tip))


def _bump_amount(amount: int) -> int:
    return max(amount + 1, -(-amount * _BUMP_NUMERATOR // _BUMP_DENOMINATOR))
