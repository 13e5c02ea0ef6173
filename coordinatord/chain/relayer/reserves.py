"""Reserves of the account's native funds, and the transactions that they still pay for.

Below the reserve, only exits and cancels are relayed, because exits free other people's money. Below a lower reserve,
cancels stop as well: an owner can always cancel without the coordinator.
"""

from collections.abc import Sequence

import attrs

from coordinatord.chain.relayer.coalesce import Planned, Rank
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling, FeeMarket, offer


@attrs.frozen(slots=True)
class Reserves:
    """Funds that transactions of each rank must leave untouched. The settings are amounts of gas, so that the
    reserves grow with its price."""

    cancel: int
    other: int

    @classmethod
    def of(cls, cancel_gas: int, other_gas: int, market: FeeMarket, ceiling: FeeCeiling = NO_CEILING) -> "Reserves":
        cap = offer(market, ceiling).cap
        return cls(cancel_gas * cap, other_gas * cap)

    def reserve_for(self, rank: Rank) -> int:
        return {Rank.EXIT: 0, Rank.CANCEL: self.cancel, Rank.OTHER: self.other}[rank]

    def allows(self, rank: Rank, spendable: int) -> bool:
        """Return True if relays of this rank are accepted with these funds. Exits always are."""
        return rank is Rank.EXIT or spendable >= self.reserve_for(rank)


def affordable(
    plans: Sequence[Planned], spendable: int, cap: int, reserves: Reserves
) -> tuple[list[Planned], list[Planned]]:
    """Return the plans that can be paid, in order, without touching the reserves for more urgent ranks, and the
    others."""
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
