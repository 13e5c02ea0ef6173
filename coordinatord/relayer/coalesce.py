"""Which relays ride together, and with how much gas.

Relays of one registry and of one rank share a transaction, in their order, as far as the number allowed, a
transaction's gas and its bytes go. Ranks are apart so that what funds or fees hold back takes nothing with it. One that
came back to the queue rides alone: whatever went wrong with its transaction harms nobody else's.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from coordinatord.chain.relayed import relay as relay_calldata
from coordinatord.relayer.gas_book import (
    BASE_GAS,
    FIRST_LOOK,
    REGISTRY_SLACK,
    GasBook,
    Shape,
    floor_gas,
    intrinsic_gas,
    shape_of,
)
from coordinatord.relayer.room import Room
from coordinatord.store.outbox import RelayKind, WaitingRelay

FOR_EXITS: Final = 32  # places among transactions in flight that nothing but exits may take
_ALONE_EXTRA: Final = 20_000
_TOGETHER: Final = REGISTRY_SLACK + FIRST_LOOK  # once for each transaction of many, at least
_PER_CALL: Final = 160  # bytes of a call's place in `relay(bytes[])`, at most


class Rank(enum.IntEnum):
    """What is kept up longest when funds run out or fees rise."""

    EXIT = 0  # settle, fail, reclaim: they free other people's money
    CANCEL = 1  # an owner can always act alone
    OTHER = 2


_RANKS: Final = {
    RelayKind.SETTLE: Rank.EXIT,
    RelayKind.FAIL: Rank.EXIT,
    RelayKind.RECLAIM: Rank.EXIT,
    RelayKind.CANCEL: Rank.CANCEL,
}


def rank_of(kind: RelayKind) -> Rank:
    return _RANKS.get(kind, Rank.OTHER)


@attrs.frozen(slots=True)
class Simulated:
    """A relay that the chain would take now, the gas that will do for it alone, and its share among others."""

    relay: WaitingRelay
    gas: int
    share: int

    @classmethod
    def of(cls, relay: WaitingRelay, gas: int, book: GasBook) -> "Simulated":
        return cls(relay, gas, book.share(relay.target, relay.calldata, gas))

    @property
    def unused(self) -> int:
        """Gas that it wants to find and leaves: the registry's `tokenGas`, which an admin may raise, is most of it."""
        return max(self.gas - intrinsic_gas(self.relay.calldata) - self.share, 0)


@attrs.frozen(slots=True)
class Planned:
    """A transaction to be signed. `relays` ride in this order; a single one is the whole transaction."""

    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas: int
    priority: int
    rank: Rank
    relays: tuple[WaitingRelay, ...]

    def call_index(self, place: int) -> int | None:
        return place if len(self.relays) > 1 else None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(shape_of(relay.target, relay.calldata) for relay in self.relays)


@attrs.define(slots=True)
class _Group:
    """`gas` is what its calls use, but for their places, which `_PER_CALL` bounds."""

    relays: list[Simulated]
    gas: int = BASE_GAS
    size: int = 0

    def takes(self, one: Simulated, most: int, room: Room) -> bool:
        gas, size = _added(one)
        together = _together([*self.relays, one])
        fits = self.gas + gas + together <= room.gas and self.size + size <= room.bytes
        return len(self.relays) < most and fits

    def add(self, one: Simulated) -> None:
        gas, size = _added(one)
        self.relays.append(one)
        self.gas += gas
        self.size += size


def _together(group: Iterable[Simulated]) -> int:
    """The gas that a shared transaction needs once: whichever call comes last still finds all that it wants."""
    return max(_TOGETHER, *(one.unused for one in group))


def _added(one: Simulated) -> tuple[int, int]:
    """The gas and the bytes that a relay adds to a shared transaction, from above."""
    calldata = one.relay.calldata
    # The floor is a transaction's and not a call's, so it may well not be reached: a bound all the same.
    gas = max(intrinsic_gas(calldata) + one.share, floor_gas(calldata))
    return gas - BASE_GAS + 16 * _PER_CALL, len(calldata) + _PER_CALL


def coalesce(simulated: Iterable[Simulated], *, most: int, room: Room) -> list[Planned]:
    """The transactions for these relays, in the order of each one's first relay."""
    groups: list[_Group] = []
    open_groups: dict[tuple[bytes, Rank], _Group] = {}
    for one in simulated:
        key = one.relay.target, rank_of(one.relay.kind)
        group = open_groups.get(key)
        if one.relay.requeued or group is None or not group.takes(one, most, room):
            group = _Group([])
            groups.append(group)
            if not one.relay.requeued:
                open_groups[key] = group
        group.add(one)
    return [_plan(group.relays, room) for group in groups]


def in_flight(plans: Sequence[Planned], room: int) -> list[Planned]:
    """As many as there is room for, exits first; some of the room is for them alone."""
    exits = [plan for plan in plans if plan.rank is Rank.EXIT][:room]
    others = [plan for plan in plans if plan.rank is not Rank.EXIT]
    return exits + others[: max(room - len(exits) - FOR_EXITS, 0)]


def _plan(group: list[Simulated], room: Room) -> Planned:
    relays = tuple(one.relay for one in group)
    first = relays[0]
    if len(group) == 1:
        # Every return to the queue doubles the margin: a call that starved once gets what it needs in the end.
        gas = group[0].gas + group[0].gas * (1 << first.requeued) // 4 + _ALONE_EXTRA
        return Planned(first.target, first.calldata, min(gas, room.gas), first.priority, rank_of(first.kind), relays)
    calldata = relay_calldata([relay.calldata for relay in relays])
    gas = max(intrinsic_gas(calldata) + _together(group) + sum(one.share for one in group), floor_gas(calldata))
    return Planned(first.target, calldata, gas, min(r.priority for r in relays), rank_of(first.kind), relays)
