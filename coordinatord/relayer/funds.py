"""What the account's native funds still allow.

Below the reserve, posts stop so that settles, fails and reclaims can go on: they free other people's money.
"""

from collections.abc import Iterable, Sequence

from coordinatord.relayer.coalesce import Planned
from coordinatord.relayer.fees import Market, offer
from coordinatord.store.outbox import RelayKind, WaitingRelay


def below_reserve(spendable: int, market: Market, reserve_gas: int) -> bool:
    """The reserve is an amount of gas, so that it grows with the price of gas."""
    return spendable < reserve_gas * offer(market).cap


def posts_among(relays: Iterable[WaitingRelay]) -> list[WaitingRelay]:
    return [relay for relay in relays if relay.kind is RelayKind.POST]


def affordable(plans: Sequence[Planned], spendable: int, market: Market) -> tuple[list[Planned], list[Planned]]:
    """(those that can be paid in their order, the others)."""
    cap = offer(market).cap
    paid: list[Planned] = []
    unpaid: list[Planned] = []
    for plan in plans:
        cost = plan.gas * cap
        if cost <= spendable:
            spendable -= cost
            paid.append(plan)
        else:
            unpaid.append(plan)
    return paid, unpaid
