"""Which relays ride together, and with how much gas.

Relays of one registry and of one rank share a transaction, in their order, as far as the number allowed, a
transaction's gas and its bytes go. Ranks are apart so that what funds or fees hold back takes nothing with it. One that
came back to the queue rides alone: whatever went wrong with its transaction harms nobody else's.

What builds on another relay of the same round (a claim on its post) rides in the same transaction, right behind it, and
ranks as the least urgent of the two; what does not fit stays queued, for a transaction of a higher nonce.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import attrs

from coordinatord.chain.logs import relay as relay_calldata
from coordinatord.relayer.outbox_sql import RelayKind
from coordinatord.relayer.queue_sql import WaitingRelay

# How much gas ops of one shape take: a limit to simulate with, and a share of a transaction that carries many.
#
# An estimate costs a node many runs of the call, a call with a limit costs one and proves as much: what passes under
# that limit needs no more. So estimates are asked for only where nothing is known, or where the limit was refused.
#
# An estimate also holds what the registry wants to see left before it calls the token (`REGISTRY_SLACK`). A
# transaction of many ops needs that once, so the estimates of its ops add up to far more than it uses. Receipts tell
# what a share really is: those of transactions whose ops are all alike, because only there is it certain whose the
# gas was. Until then what a simulation used counts, where ops ran one after the other, else the estimate. A share rises
# at once to what was used and falls slowly; a transaction that starved doubles it. It is never above the estimate, so
# that learning can neither starve ops for long nor grow without bound.

# What a new job registry wants to see before it calls the token, with the 1/64 that each of two callers keeps back, and
# a little for the loop. An admin may raise it: estimates tell, and plans go by them where they are higher.
REGISTRY_SLACK: Final = 230_000
# The first look at what the calls of a transaction have in common: accounts and slots that are cold once.
FIRST_LOOK: Final = 60_000
BASE_GAS: Final = 21_000
_PER_ZERO: Final = 4
_PER_BYTE: Final = 16
_FLOOR_PER_ZERO: Final = 10  # EIP-7623: what calldata costs at least
_FLOOR_PER_BYTE: Final = 40
_MARGIN_NUMERATOR: Final = 5  # of a quarter: state may make an op dearer than its like
_MARGIN_DENOMINATOR: Final = 4
# Of a sixth, of what receipts show: gas that a refund gave back was needed all the same, and state differs.
_SHARE_NUMERATOR: Final = 7
_SHARE_DENOMINATOR: Final = 6
_FALLS_BY: Final = 8  # an eighth of the difference with each transaction
_MANY: Final = 8  # ops from which on what they share (the first look at each slot) weighs little

Shape: TypeAlias = tuple[bytes, bytes, int]


class GasBook:
    """Grows with what it is taught; ops of one selector and about one size count as alike."""

    def __init__(self) -> None:
        self._execution: dict[Shape, int] = {}  # the dearest estimate
        self._shares: dict[Shape, int] = {}  # what receipts show

    def limit(self, target: bytes, calldata: bytes) -> int | None:
        """Gas that will do for the op alone, or None when nothing like it was seen."""
        execution = self._execution.get(shape_of(target, calldata))
        if execution is None:
            return None
        return intrinsic_gas(calldata) + execution * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR

    def learn(self, target: bytes, calldata: bytes, estimate: int) -> None:
        shape = shape_of(target, calldata)
        execution = max(estimate - intrinsic_gas(calldata), 0)
        self._execution[shape] = max(execution, self._execution.get(shape, 0))

    def simulated(self, target: bytes, calldata: bytes, used: int) -> None:
        """Gas that a simulation used, before any receipt has told; a refund may have given back a fifth."""
        shape = shape_of(target, calldata)
        if shape not in self._shares:
            self._shares[shape] = _before_refund(max(used - intrinsic_gas(calldata), 0))

    def share(self, target: bytes, calldata: bytes, alone: int) -> int:
        """Gas that the op adds to a transaction that carries others, beside its bytes. `alone`: enough when it is sent
        by itself."""
        most = max(alone - intrinsic_gas(calldata), 0)
        share = self._shares.get(shape_of(target, calldata))
        return most if share is None else min(share * _SHARE_NUMERATOR // _SHARE_DENOMINATOR, most)

    def was_used(self, shapes: Sequence[Shape], execution: int) -> None:
        """Gas of a mined transaction whose ops, of these shapes, all took effect. `execution`: gas that it used beside
        that for its bytes."""
        if not shapes or len(set(shapes)) > 1:
            return
        (shape,) = set(shapes)
        used = max(execution - (FIRST_LOOK if len(shapes) > 1 else 0), 0) // len(shapes)
        known = self._shares.get(shape)
        if known is None:
            self._shares[shape] = used
        elif len(shapes) >= _MANY:
            self._shares[shape] = used if used >= known else known - (known - used) // _FALLS_BY

    def starved(self, shapes: Sequence[Shape]) -> None:
        """A transaction with these ops ran out of gas: their shares were too small."""
        for shape in set(shapes):
            share = self._shares.get(shape)
            if share is not None:
                self._shares[shape] = 2 * share


def enough_gas(calldata: bytes, used: int) -> int:
    """Limit for an op of a new kind of which a simulation tells no more than what it used."""
    return intrinsic_gas(calldata) + _before_refund(max(used - intrinsic_gas(calldata), 0)) + REGISTRY_SLACK


def _before_refund(used: int) -> int:
    return used * _MARGIN_NUMERATOR // _MARGIN_DENOMINATOR


def shape_of(target: bytes, calldata: bytes) -> Shape:
    return target, calldata[:4], len(calldata).bit_length()


def intrinsic_gas(calldata: bytes) -> int:
    """Gas that a transaction with this calldata costs before it does anything."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _PER_ZERO + (len(calldata) - zeros) * _PER_BYTE


def floor_gas(calldata: bytes) -> int:
    """Least gas that a transaction with this calldata must offer, whatever it does (EIP-7623)."""
    zeros = calldata.count(0)
    return BASE_GAS + zeros * _FLOOR_PER_ZERO + (len(calldata) - zeros) * _FLOOR_PER_BYTE


# How large one transaction may be: by the chain's rules, by the settings, and by what nodes refused of late.

TX_GAS_CAP: Final = 1 << 24  # EIP-7825: no transaction may offer more, however large the blocks are
MOST_BYTES: Final = 120_000  # nodes take 128 KiB for a transaction
# Of the block's gas for one transaction: more would wait for an empty block.
_BLOCK_SHARE: Final = 2
_LEAST_GAS: Final = 2_000_000  # the dearest op alone, an identity with all its evidence, needs less
_LEAST_BYTES: Final = 40_000
_LOWERED_FOR: Final = 600.0  # seconds


@attrs.frozen(slots=True)
class TxSize:
    """Most gas and bytes that one transaction may hold."""

    gas: int
    bytes: int = MOST_BYTES


@attrs.define(slots=True)
class TxRoom:
    """`setting`: what the operator allows. A refusal for size halves the room for ten minutes, so that a limit that
    nobody knew of costs one transaction and not every one."""

    setting: int = TX_GAS_CAP
    block_gas_limit: int = 0
    _gas: int = TX_GAS_CAP
    _bytes: int = MOST_BYTES
    _until: float = 0.0

    def at(self, now: float) -> TxSize:
        if now >= self._until:
            self._gas, self._bytes = TX_GAS_CAP, MOST_BYTES
        return TxSize(min(self.block_gas_limit // _BLOCK_SHARE, TX_GAS_CAP, self.setting, self._gas), self._bytes)

    def too_much_gas(self, gas: int, now: float) -> None:
        self._gas = min(self._gas, max(gas // 2, _LEAST_GAS))
        self._until = now + _LOWERED_FOR

    def too_many_bytes(self, size: int, now: float) -> None:
        self._bytes = min(self._bytes, max(size // 2, _LEAST_BYTES))
        self._until = now + _LOWERED_FOR


FOR_EXITS: Final = 32  # places among transactions in flight that nothing but exits may take
_ALONE_EXTRA: Final = 20_000
_TOGETHER: Final = REGISTRY_SLACK + FIRST_LOOK  # once for each transaction of many, at least
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
    """A relay that the chain would take now, the gas that will do for it alone, and its share among others. `after`:
    the relay that it builds on, undecided as well: of the same round, or signed before."""

    relay: WaitingRelay
    gas: int
    share: int
    after: int | None = None

    @classmethod
    def of(cls, relay: WaitingRelay, gas: int, book: GasBook, after: int | None = None) -> "Simulated":
        return cls(relay, gas, book.share(relay.target, relay.calldata, gas), after)

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
    """`gas` is what its calls use, but for their places, which `_PER_CALL` bounds; `together` what it needs once."""

    rank: Rank
    relays: list[Simulated] = attrs.field(factory=list)
    gas: int = BASE_GAS
    together: int = _TOGETHER
    size: int = 0

    def takes(self, chain: Sequence[Simulated], most: int, room: TxSize) -> bool:
        added = [_added(one) for one in chain]
        together = max(self.together, *(one.unused for one in chain))
        return (
            len(self.relays) + len(chain) <= most
            and self.gas + sum(gas for gas, _ in added) + together <= room.gas
            and self.size + sum(size for _, size in added) <= room.bytes
        )

    def add(self, one: Simulated) -> None:
        gas, size = _added(one)
        self.relays.append(one)
        self.gas += gas
        self.together = max(self.together, one.unused)
        self.size += size


def _added(one: Simulated) -> tuple[int, int]:
    """The gas and the bytes that a relay adds to a shared transaction, from above."""
    calldata = one.relay.calldata
    # The floor is a transaction's and not a call's, so it may well not be reached: a bound all the same.
    gas = max(intrinsic_gas(calldata) + one.share, floor_gas(calldata))
    return gas - BASE_GAS + 16 * _PER_CALL, len(calldata) + _PER_CALL


def coalesce(simulated: Iterable[Simulated], *, most: int, room: TxSize) -> list[Planned]:
    """The transactions for these relays, in the order of each one's first relay."""
    groups: list[_Group] = []
    open_groups: dict[tuple[bytes, Rank], _Group] = {}
    for chain in _chains(simulated):
        first, rank = chain[0].relay, max(rank_of(one.relay.kind) for one in chain)
        group = open_groups.get((first.target, rank))
        if first.requeued or group is None or not group.takes(chain, most, room):
            group = _Group(rank)
            groups.append(group)
            if not first.requeued:
                open_groups[first.target, rank] = group
            while len(chain) > 1 and not group.takes(chain, most, room):
                chain.pop()  # it stays queued
        for one in chain:
            group.add(one)
    return [_plan(group, room) for group in groups]


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


def _plan(group: _Group, room: TxSize) -> Planned:
    relays = tuple(one.relay for one in group.relays)
    first = relays[0]
    if len(relays) == 1:
        # Every return to the queue doubles the margin: a call that starved once gets what it needs in the end.
        alone = group.relays[0].gas
        gas = alone + alone * (1 << first.requeued) // 4 + _ALONE_EXTRA
        return Planned(first.target, first.calldata, min(gas, room.gas), first.priority, group.rank, relays)
    calldata = relay_calldata([relay.calldata for relay in relays])
    shares = sum(one.share for one in group.relays)
    gas = max(intrinsic_gas(calldata) + group.together + shares, floor_gas(calldata))
    return Planned(first.target, calldata, gas, min(r.priority for r in relays), group.rank, relays)
