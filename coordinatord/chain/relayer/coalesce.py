"""Which relays ride together, and with how much gas.

Relays of one registry and of one rank share a transaction, in their order, as far as the number allowed, a
transaction's gas and its bytes go. Ranks are apart so that what funds or fees hold back takes nothing with it. One that
came back to the queue rides alone: whatever went wrong with its transaction harms nobody else's.

What builds on another relay of the same round (a claim on its post) rides in the same transaction, right behind it, and
ranks as the least urgent of the two; what does not fit stays queued, for a transaction of a higher nonce.
"""

import enum
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import attrs

from coordinatord.chain.contracts import relayed_calls
from coordinatord.chain.contracts.job_registry import claim_posted
from coordinatord.chain.relayer.gas_book import BASE_GAS, FIRST_LOOK, GasBook, OpKind, floor_gas, intrinsic_gas
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.queue_sql import WaitingRelay
from coordinatord.chain.relayer.tx_size import TxSize

FOR_EXITS: Final = 32  # places among transactions in flight that nothing but exits may take
_ALONE_EXTRA: Final = 20_000
_PER_CALL: Final = 160  # bytes of a call's place in `relay(bytes[])`, at most


class Rank(enum.IntEnum):
    """Order in which ops are kept up when funds run out or fees rise."""

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
    """A relay that the chain would take now, the gas that will do for it alone, its share among others, and what it
    wants to find there and leaves. `after`: the relay that it builds on, undecided as well: of the same round, in whose
    transaction it rides, or signed before."""

    relay: WaitingRelay
    gas: int
    kind: OpKind
    share: int
    unused: int
    after: int | None = None

    @classmethod
    def of(
        cls, relay: WaitingRelay, gas: int, book: GasBook, after: int | None = None, *, on_top: bool = False
    ) -> "Simulated":
        kind = OpKind.of(relay.target, relay.calldata, on_top=on_top)
        share = book.share(kind, relay.calldata, gas)
        return cls(relay, gas, kind, share, book.unused(kind, relay.calldata, gas), after)


@attrs.frozen(slots=True)
class Planned:
    """A transaction to be signed. `relays` ride in this order; a single one is the whole transaction."""

    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas: int
    priority: int
    rank: Rank
    relays: tuple[WaitingRelay, ...]
    kinds: tuple[OpKind, ...] = ()

    def call_index(self, place: int) -> int | None:
        return place if len(self.relays) > 1 else None


@attrs.define(slots=True)
class _Group:
    """`carried` and `floor`: gas for the bytes of its calls, what it costs and what it must offer at least, with their
    places, which `_PER_CALL` bounds; `shares`: of its calls; `once`: what it needs once."""

    rank: Rank
    relays: list[Simulated] = attrs.field(factory=list)
    carried: int = BASE_GAS
    floor: int = BASE_GAS
    shares: int = 0
    once: int = FIRST_LOOK
    size: int = 0

    def takes(self, chain: Sequence[Simulated], most: int, room: TxSize, book: GasBook) -> bool:
        if len(self.relays) + len(chain) > most:
            return False
        grown = attrs.evolve(self, relays=[*self.relays])
        for one in chain:
            grown.add(one)
        if grown.size > room.bytes or grown.floor > room.gas:
            return False
        left = room.gas - grown.carried - grown.once
        # Added up first, which is nearly always enough.
        return grown.shares <= left or book.together((one.kind, one.share) for one in grown.relays) <= left

    def add(self, one: Simulated) -> None:
        calldata = one.relay.calldata
        self.relays.append(one)
        self.carried += intrinsic_gas(calldata) - BASE_GAS + 16 * _PER_CALL
        self.floor += floor_gas(calldata) - BASE_GAS + 40 * _PER_CALL
        self.shares += one.share
        self.once = max(self.once, one.unused)
        self.size += len(calldata) + _PER_CALL


def coalesce(simulated: Iterable[Simulated], *, most: int, room: TxSize, book: GasBook | None = None) -> list[Planned]:
    """The transactions for these relays, in the order of each one's first relay. Without a `book` shares add up."""
    book = book or GasBook()
    groups: list[_Group] = []
    open_groups: dict[tuple[bytes, Rank], _Group] = {}
    for chain in _chains(simulated):
        first, rank = chain[0].relay, max(rank_of(one.relay.kind) for one in chain)
        group = open_groups.get((first.target, rank))
        if first.requeued or group is None or not group.takes(chain, most, room, book):
            group = _Group(rank)
            groups.append(group)
            if not first.requeued:
                open_groups[first.target, rank] = group
            while len(chain) > 1 and not group.takes(chain, most, room, book):
                chain.pop()  # it stays queued
        for one in chain:
            group.add(one)
    return [_plan(group, room, book) for group in groups]


def _chains(simulated: Iterable[Simulated]) -> list[list[Simulated]]:
    """Each with those that build on it, in their order; as urgent as the first of them that is met."""
    every = {one.relay.id: one for one in simulated}
    following = {one.after: one for one in every.values() if one.after in every}
    chains: dict[int, list[Simulated]] = {}
    for one in every.values():
        first = one
        while first.after in every:
            first = every[first.after]
        if first.relay.id not in chains:
            chains[first.relay.id] = chain = [first]
            while (link := following.get(chain[-1].relay.id)) is not None:
                chain.append(link)
    return list(chains.values())


def in_flight(plans: Sequence[Planned], room: int) -> list[Planned]:
    """As many as there is room for, exits first; some of the room is for them alone."""
    exits = [plan for plan in plans if plan.rank is Rank.EXIT][:room]
    others = [plan for plan in plans if plan.rank is not Rank.EXIT]
    return exits + others[: max(room - len(exits) - FOR_EXITS, 0)]


def _call(one: Simulated, before: Simulated | None) -> bytes:
    """Calldata of an op in a relay. A claim right behind its job's post takes the terms from that call."""
    relay = one.relay
    if before is None or before.relay.kind is not RelayKind.POST or relay.kind is not RelayKind.CLAIM:
        return relay.calldata
    return claim_posted(relay.calldata) if one.after == before.relay.id else relay.calldata


def _plan(group: _Group, room: TxSize, book: GasBook) -> Planned:
    relays, kinds = tuple(one.relay for one in group.relays), tuple(one.kind for one in group.relays)
    first = relays[0]
    if len(relays) == 1:
        # Every return to the queue doubles the margin: a call that starved once gets what it needs in the end.
        alone = group.relays[0].gas
        gas = alone + alone * (1 << first.requeued) // 4 + _ALONE_EXTRA
        return Planned(first.target, first.calldata, min(gas, room.gas), first.priority, group.rank, relays, kinds)
    calldata = relayed_calls.relay([_call(one, before) for before, one in pairwise([None, *group.relays]) if one])
    together = book.together((one.kind, one.share) for one in group.relays)
    gas = max(intrinsic_gas(calldata) + group.once + together, floor_gas(calldata))
    return Planned(first.target, calldata, gas, min(r.priority for r in relays), group.rank, relays, kinds)
