"""Which relays ride together.

Relays of one registry share a transaction, in their order, as far as the number allowed and the block's gas go. One
that came back to the queue rides alone: whatever went wrong with its transaction harms nobody else's.
"""

from collections.abc import Iterable
from typing import Final

import attrs

from coordinatord.chain.relayed import relay as relay_calldata
from coordinatord.store.outbox import WaitingRelay

# A registry takes a refused call that leaves less than 1/16 of the gas for a starved one, and each call gets 63/64 of
# what is left: an eighth on top covers both. The sum of the single estimates already counts 21,000 for each.
_TOGETHER_EXTRA: Final = 60_000
_ALONE_EXTRA: Final = 20_000
# Of the block's gas for one transaction: more would wait for an empty block.
_BLOCK_SHARE: Final = 2


@attrs.frozen(slots=True)
class Simulated:
    """A relay that the chain would take now, and the gas that it would use alone."""

    relay: WaitingRelay
    gas: int


@attrs.frozen(slots=True)
class Planned:
    """A transaction to be signed. `relays` ride in this order; a single one is the whole transaction."""

    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas: int
    priority: int
    relays: tuple[WaitingRelay, ...]

    def call_index(self, place: int) -> int | None:
        return place if len(self.relays) > 1 else None


def coalesce(simulated: Iterable[Simulated], *, most: int, block_gas_limit: int) -> list[Planned]:
    """The transactions for these relays, in the order of each one's first relay."""
    ceiling = block_gas_limit // _BLOCK_SHARE
    groups: list[list[Simulated]] = []
    open_group: dict[bytes, list[Simulated]] = {}
    for one in simulated:
        group = open_group.get(one.relay.target)
        if one.relay.requeued:
            groups.append([one])
        elif group is not None and len(group) < most and _together([*group, one]) <= ceiling:
            group.append(one)
        else:
            open_group[one.relay.target] = group = [one]
            groups.append(group)
    return [_plan(group, block_gas_limit) for group in groups]


def _together(group: list[Simulated]) -> int:
    return sum(one.gas for one in group) * 9 // 8 + _TOGETHER_EXTRA


def _plan(group: list[Simulated], block_gas_limit: int) -> Planned:
    relays = tuple(one.relay for one in group)
    first = relays[0]
    if len(group) == 1:
        # Every return to the queue doubles the margin: a call that starved once gets what it needs in the end.
        gas = group[0].gas + group[0].gas * (1 << first.requeued) // 4 + _ALONE_EXTRA
        return Planned(first.target, first.calldata, min(gas, block_gas_limit), first.priority, relays)
    calldata = relay_calldata([relay.calldata for relay in relays])
    return Planned(first.target, calldata, _together(group), min(r.priority for r in relays), relays)
