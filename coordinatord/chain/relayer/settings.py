"""Settings of the relayer, and the floors that they set: which transactions the account's funds still pay for."""

from collections.abc import Sequence
from typing import Final

import attrs

from coordinatord.chain.relayer.coalesce import TX_GAS_CAP, Planned, Rank
from coordinatord.chain.relayer.fees import NO_CEILING, FeeCeiling, FeeMarket, offer

MINED_WITHIN_S: Final = 15.0  # longer than until a node is reminded by the same bytes


@attrs.frozen(slots=True, kw_only=True)
class RelayerSettings:
    """`reserve_gas`: with funds for less gas than this, only exits and cancels are relayed; enough for a few hundred.
    `cancel_reserve_gas`: with less than this, exits alone.
    `max_tx_gas`: what one transaction may use at most. `fee_ceiling`: what is never offered more than.
    `max_in_flight`: transactions signed and not mined at most; nodes drop what is far ahead of the chain's nonce.
    `keeping_up`: seconds that the chain may take for a transaction until posts of batches are held back: far less than
    callers wait for a receipt, and enough to fill any block.
    `mined_within`: seconds that the transaction whose turn it is may lie with a node until more is offered for it.
    `chains`: ops are signed on top of undecided ones of their job, and do not wait for those to be mined.
    `former`: the account is followed until nothing of it is pending, and signs nothing but replacements."""

    coalesce_max: int
    queue_timeout_ms: int
    block_time_ms: int
    reserve_gas: int = 30_000_000
    cancel_reserve_gas: int = 10_000_000
    max_tx_gas: int = TX_GAS_CAP
    fee_ceiling: FeeCeiling = NO_CEILING
    max_in_flight: int = 256
    keeping_up: float = 5.0
    mined_within: float = MINED_WITHIN_S
    chains: bool = True
    former: bool = False

    @property
    def busy_poll(self) -> float:
        """Seconds between looks at the head while something is pending: a fraction of the block time."""
        return min(max(self.block_time_ms / 40_000, 0.01), 0.25)

    @property
    def idle_poll(self) -> float:
        return min(max(self.block_time_ms / 1000, 0.05), 2.0)


# Reserves of the account's native funds: which transactions it can still pay for.
#
# Below the reserve, only exits and cancels are relayed, so that settles, fails and reclaims can go on: they free other
# people's money. A lower floor stops cancels, too: an owner can always act alone.


@attrs.frozen(slots=True)
class Floors:
    """Funds that each rank must leave untouched. Amounts of gas in the settings, so that they grow with its price."""

    cancel: int
    other: int

    @classmethod
    def of(cls, cancel_gas: int, other_gas: int, market: FeeMarket, ceiling: FeeCeiling = NO_CEILING) -> "Floors":
        cap = offer(market, ceiling).cap
        return cls(cancel_gas * cap, other_gas * cap)

    def below(self, rank: Rank) -> int:
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


NO_FLOORS: Final = Floors(0, 0)


def affordable(
    plans: Sequence[Planned], spendable: int, cap: int, floors: Floors = NO_FLOORS
) -> tuple[list[Planned], list[Planned]]:
    """(those that can be paid in their order without touching what is kept for more urgent ones, the others)."""
    paid: list[Planned] = []
    unpaid: list[Planned] = []
    for plan in plans:
        cost = plan.gas * cap
        if cost <= spendable - floors.below(plan.rank):
            spendable -= cost
            paid.append(plan)
        else:
            unpaid.append(plan)
    return paid, unpaid
