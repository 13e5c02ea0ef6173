"""Group relays into transactions, and choose the gas of each transaction.

Relays of one registry and one rank share a transaction, in their order, within the limits on ops, gas and bytes. Ranks
are separate, so that low funds or high fees hold back only their own rank. A relay that came back to the queue is sent
alone, so that its failure affects no other relay.

If an op builds on another op of the same round (a claim on its post), it follows in the same transaction. The
transaction has the less urgent rank of the two. A relay that does not fit stays queued for a later transaction.
"""

import enum
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import attrs

from coordinatord.chain.contracts import relayed_calls
from coordinatord.chain.contracts.job_registry import claim_posted
from coordinatord.chain.relayer.op_gas import expected_share
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.queue_sql import WaitingRelay
from coordinatord.chain.relayer.tx_size import BASE_GAS, TxSize, floor_gas

# Transactions in flight reserved for exits.
RESERVED_EXIT_TRANSACTIONS: Final = 32
_SINGLE_OP_EXTRA_GAS: Final = 20_000
# Upper limit of a call's overhead in `relay(bytes[])`.
_CALL_BYTES: Final = 160
_CALL_FLOOR_GAS: Final = 40 * _CALL_BYTES


class Rank(enum.IntEnum):
    """Order in which ops continue when funds run out or fees rise."""

    # Settle, fail, reclaim: they free other people's money.
    EXIT = 0
    # An owner can always cancel without the coordinator.
    CANCEL = 1
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
    """Relay that the chain would accept now. `gas` is enough for the relay alone. `share` is its cost within a relay
    of many. `after` is the id of the undecided relay that it builds on, signed earlier or of the same round."""

    relay: WaitingRelay
    gas: int
    share: int
    after: int | None = None


@attrs.frozen(slots=True)
class Planned:
    """Transaction to be signed. `relays` are sent in this order, and a single relay is the whole transaction.
    `expected` is the gas that several relays should use, without margin, or 0 if unknown."""

    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas: int
    priority: int
    rank: Rank
    relays: tuple[WaitingRelay, ...]
    expected: int = 0

    def call_index(self, place: int) -> int | None:
        return place if len(self.relays) > 1 else None


@attrs.define(slots=True)
class _Group:
    """Ops of one transaction. The most expensive op pays its cost alone, which covers the common cost. Each other op
    adds its share."""

    rank: Rank
    ops: list[Simulated] = attrs.field(factory=list)
    shares: int = 0
    common: int = 0
    floor: int = BASE_GAS
    size: int = 0

    @property
    def gas(self) -> int:
        return max(self.shares + self.common, self.floor)

    def takes(self, chain: Sequence[Simulated], max_ops: int, room: TxSize) -> bool:
        grown = attrs.evolve(self, ops=[*self.ops])
        for op in chain:
            grown.add(op)
        return len(grown.ops) <= max_ops and grown.size <= room.bytes and grown.gas <= room.gas

    def add(self, op: Simulated) -> None:
        calldata = op.relay.calldata
        self.ops.append(op)
        self.shares += op.share
        self.common = max(self.common, op.gas - op.share)
        self.floor += floor_gas(calldata) - BASE_GAS + _CALL_FLOOR_GAS
        self.size += len(calldata) + _CALL_BYTES


def coalesce(simulated: Iterable[Simulated], *, max_ops: int, room: TxSize) -> list[Planned]:
    """Return the transactions for these relays, in the order of their first relays."""
    groups: list[_Group] = []
    open_groups: dict[tuple[bytes, Rank], _Group] = {}
    for chain in _chains(simulated):
        first, rank = chain[0].relay, max(rank_of(op.relay.kind) for op in chain)
        group = open_groups.get((first.target, rank))
        if first.requeued or group is None or not group.takes(chain, max_ops, room):
            group = _Group(rank)
            groups.append(group)
            if not first.requeued:
                open_groups[first.target, rank] = group
            while len(chain) > 1 and not group.takes(chain, max_ops, room):
                # It stays queued.
                chain.pop()
        for op in chain:
            group.add(op)
    return [_plan(group, room) for group in groups]


def _chains(simulated: Iterable[Simulated]) -> list[list[Simulated]]:
    """Group ops with the ops that build on them, in order. A group takes the place of its first op in the input."""
    ops = {op.relay.id: op for op in simulated}
    following = {op.after: op for op in ops.values() if op.after in ops}
    chains: dict[int, list[Simulated]] = {}
    for op in ops.values():
        first = op
        while first.after in ops:
            first = ops[first.after]
        if first.relay.id not in chains:
            chains[first.relay.id] = chain = [first]
            while (link := following.get(chain[-1].relay.id)) is not None:
                chain.append(link)
    return list(chains.values())


def in_flight(plans: Sequence[Planned], room: int) -> list[Planned]:
    """Return as many plans as fit, exits first. Part of the room is reserved for exits."""
    exits = [plan for plan in plans if plan.rank is Rank.EXIT][:room]
    others = [plan for plan in plans if plan.rank is not Rank.EXIT]
    return exits + others[: max(room - len(exits) - RESERVED_EXIT_TRANSACTIONS, 0)]


def _plan(group: _Group, room: TxSize) -> Planned:
    relays = tuple(op.relay for op in group.ops)
    first = relays[0]
    if len(relays) == 1:
        # Each return to the queue doubles the margin, so that a call that ran out of gas gets enough in the end.
        alone = group.ops[0].gas
        gas = alone + alone * (1 << first.requeued) // 4 + _SINGLE_OP_EXTRA_GAS
        return Planned(first.target, first.calldata, min(gas, room.gas), first.priority, group.rank, relays)
    calldata = relayed_calls.relay([_call(op, before) for before, op in pairwise([None, *group.ops]) if op])
    expected = [expected_share(relay.kind, len(relay.calldata)) for relay in relays]
    return Planned(
        first.target,
        calldata,
        group.gas,
        min(relay.priority for relay in relays),
        group.rank,
        relays,
        0 if None in expected else sum(share for share in expected if share is not None),
    )


def _call(op: Simulated, before: Simulated | None) -> bytes:
    """Return an op's calldata within a relay. A claim directly after its job's post takes the terms from the post."""
    calldata = op.relay.calldata
    if before is None or before.relay.kind is not RelayKind.POST or op.after != before.relay.id:
        return calldata
    # Other calldata stays unchanged.
    return claim_posted(calldata)
