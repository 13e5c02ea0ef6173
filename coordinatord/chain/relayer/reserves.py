"""Reserves of the account's native funds: which transactions they still pay for.

Below the reserve, only exits and cancels are relayed, so that settles, fails and reclaims can go on: they free other
people's money. A lower reserve stops cancels, too: an owner can always act alone.
"""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.chain.relayer.coalesce import Planned, Rank
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling, FeeMarket, offer


@attrs.frozen(slots=True)
class Reserves:
    """Funds that each rank must leave untouched. Amounts of gas in the settings, so that they grow with its price."""

    cancel: int
    other: int

    @classmethod
    def of(cls, cancel_gas: int, other_gas: int, market: FeeMarket, ceiling: FeeCeiling = NO_CEILING) -> "Reserves":
        cap = offer(market, ceiling).cap
        return cls(cancel_gas * cap, other_gas * cap)

    def reserve_for(self, rank: Rank) -> int:
        match rank:
            case Rank.EXIT:
                return 0
            case Rank.CANCEL:
                return self.cancel
            case Rank.OTHER:
                return self.other

    def lowest_rank(self, spendable: int) -> Rank:
        """The least urgent rank that these funds allow."""
        if spendable < self.cancel:
            return Rank.EXIT
        return Rank.CANCEL if spendable < self.other else Rank.OTHER


NO_RESERVES: Final = Reserves(0, 0)


def affordable(
    plans: Sequence[Planned], spendable: int, cap: int, reserves: Reserves = NO_RESERVES
) -> tuple[list[Planned], list[Planned]]:
    """(those that can be paid in their order without touching what is kept for more urgent ones, the others)."""
    paid: list[Planned] = []
    unpaid: list[Planned] = []
    for plan in plans:
        cost = plan.gas * cap
        if cost <= spendable - reserves.reserve_for(plan.rank):
            spendable -= cost
            paid.append(plan)
        else:
            unpaid.append(plan)
    return paid, unpaid
