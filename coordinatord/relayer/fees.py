"""What a transaction offers, and when a pending one has to offer more. All in wei per gas."""

from typing import Final

import attrs

# Nodes replace a pending transaction only by one whose both fields are at least a tenth higher; most ask for 12.5 %.
_BUMP_NUMERATOR: Final = 9
_BUMP_DENOMINATOR: Final = 8
_FAR_ABOVE: Final = 10


@attrs.frozen(slots=True)
class Fee:
    """EIP-1559: the most per gas in all, and the most of it that goes to the block's producer."""

    cap: int
    tip: int


@attrs.frozen(slots=True)
class Market:
    """What the next block demands."""

    base_fee: int
    tip: int


def next_base_fee(base_fee: int, gas_used: int, gas_limit: int) -> int:
    """The base fee of the block after one with these figures (EIP-1559)."""
    target = gas_limit // 2
    if target in (0, gas_used):
        return base_fee
    if gas_used > target:
        return base_fee + max(1, base_fee * (gas_used - target) // target // 8)
    return base_fee - base_fee * (target - gas_used) // target // 8


def offer(market: Market) -> Fee:
    """Holds for six full blocks in a row before the base fee has doubled; what is not needed is not paid."""
    return Fee(2 * market.base_fee + market.tip, market.tip)


def replacement(current: Fee, market: Market, *, refused: bool) -> Fee | None:
    """The fee of a new version, or None while the present one will do.

    `refused`: a node said that it is too low, which is reason enough, up to a bound far above the market: beyond it
    the node's reason is another one.
    """
    wanted = offer(market)
    # Half of the tip that others give is worth waiting with: each replacement costs the pool and us another version.
    enough = current.cap >= market.base_fee + min(current.tip, market.tip) // 2
    if enough and (not refused or current.cap >= _FAR_ABOVE * wanted.cap):
        return None
    return Fee(max(_bumped(current.cap), wanted.cap), max(_bumped(current.tip), wanted.tip))


def _bumped(amount: int) -> int:
    return max(amount + 1, -(-amount * _BUMP_NUMERATOR // _BUMP_DENOMINATOR))
