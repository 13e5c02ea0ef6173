"""Group relays into transactions, and choose the gas of each transaction.

Relays of one registry and one rank share a transaction, in their order. Ranks are separate, so that low funds or high
fees can hold back the less urgent ops alone. A relay that came back to the queue is sent alone, so that its failure
affects no other relay. An op that builds on another op of the same round (a claim on its post) follows in the same
transaction, which has the less urgent rank of the two. A relay that does not fit stays queued for a later transaction.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs

from coordinatord.chain.contracts import relayed_calls
from coordinatord.chain.contracts.job_registry import shorten_claim_calldata
from coordinatord.chain.relayer.op_gas import expected_share
from coordinatord.chain.relayer.outbox_sql import RelayKind, StoredRelay
from coordinatord.chain.relayer.tx_size import BASE_GAS, TxLimits, floor_gas

# Number of transactions in flight that is reserved for exits.
RESERVED_EXIT_TX_COUNT: Final = 32
_SINGLE_OP_EXTRA_GAS: Final = 20_000
# Upper limit of the bytes that `relay(bytes[])` adds to each call.
_CALL_OVERHEAD_BYTES: Final = 160
_CALL_FLOOR_GAS: Final = 40 * _CALL_OVERHEAD_BYTES


class Rank(enum.IntEnum):
    """Urgency of an op. When funds run out or fees rise, the most urgent ops continue longest."""

    # Settle, fail and reclaim, which release the payment that a claim locked.
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
class SimulatedRelay:
    """Relay that the chain would accept now. `gas_alone` is enough for the relay alone. `gas_when_shared` is the gas
    that the relay adds to a transaction of several. `builds_on` is the id of the undecided relay that this relay builds
    on, which was signed earlier or belongs to the same round."""

    relay: StoredRelay
    gas_alone: int
    gas_when_shared: int
    builds_on: int | None = None


@attrs.frozen(slots=True)
class PlannedTx:
    """Transaction to be signed. `relays` are sent in this order, and a single relay is the whole transaction.
    `expected_gas` is the gas that several relays should use, without margin, or 0 if unknown."""

    target: bytes
    calldata: bytes = attrs.field(repr=False)
    gas_limit: int
    rank: Rank
    relays: tuple[StoredRelay, ...]
    expected_gas: int = 0

    def call_index(self, index: int) -> int | None:
        return index if len(self.relays) > 1 else None


def coalesce(simulated: Iterable[SimulatedRelay], *, max_ops: int, tx_limits: TxLimits) -> list[PlannedTx]:
    """Return the transactions for these relays, in the order of their first relays."""
    groups: list[tuple[Rank, list[SimulatedRelay]]] = []
    open_groups: dict[tuple[bytes, Rank], list[SimulatedRelay]] = {}
    for chain in _group_chains(simulated):
        first, rank = chain[0].relay, max(rank_of(op.relay.kind) for op in chain)
        group = open_groups.get((first.target, rank))
        if first.requeue_count or group is None or not _fit_together([*group, *chain], max_ops, tx_limits):
            group = []
            groups.append((rank, group))
            if not first.requeue_count:
                open_groups[first.target, rank] = group
            while len(chain) > 1 and not _fit_together(chain, max_ops, tx_limits):
                # The removed op stays queued.
                chain.pop()
        group += chain
    return [_plan_transaction(rank, group, tx_limits) for rank, group in groups]


def _fit_together(ops: Sequence[SimulatedRelay], max_ops: int, tx_limits: TxLimits) -> bool:
    size = sum(len(op.relay.calldata) + _CALL_OVERHEAD_BYTES for op in ops)
    return len(ops) <= max_ops and size <= tx_limits.bytes and _total_gas(ops) <= tx_limits.gas


def _total_gas(ops: Sequence[SimulatedRelay]) -> int:
    """Return the gas of several ops. The op whose gas exceeds its share by most counts with its full gas, which covers
    the common cost. Each other op adds its share."""
    floor = BASE_GAS + sum(floor_gas(op.relay.calldata) - BASE_GAS + _CALL_FLOOR_GAS for op in ops)
    return max(sum(op.gas_when_shared for op in ops) + max(op.gas_alone - op.gas_when_shared for op in ops), floor)


def _group_chains(simulated: Iterable[SimulatedRelay]) -> list[list[SimulatedRelay]]:
    """Group ops with the ops that build on them, in order. A group takes the place of its first op in the input."""
    ops = {op.relay.id: op for op in simulated}
    following = {op.builds_on: op for op in ops.values() if op.builds_on in ops}
    chains: dict[int, list[SimulatedRelay]] = {}
    for op in ops.values():
        first = op
        while first.builds_on in ops:
            first = ops[first.builds_on]
        if first.relay.id not in chains:
            chains[first.relay.id] = chain = [first]
            while (link := following.get(chain[-1].relay.id)) is not None:
                chain.append(link)
    return list(chains.values())


def limit_in_flight(plans: Sequence[PlannedTx], free_slots: int) -> list[PlannedTx]:
    """Return as many plans as fit, exits first. Some slots are reserved for exits."""
    exits = [plan for plan in plans if plan.rank is Rank.EXIT][:free_slots]
    others = [plan for plan in plans if plan.rank is not Rank.EXIT]
    return exits + others[: max(free_slots - len(exits) - RESERVED_EXIT_TX_COUNT, 0)]


def split_affordable(
    plans: Sequence[PlannedTx], spendable: int, gas_price: int, reserves: Mapping[Rank, int]
) -> tuple[list[PlannedTx], list[PlannedTx]]:
    """Return the plans that can be paid, and the other plans, both in order. Paying for a plan must not touch the
    reserves for more urgent ranks."""
    paid: list[PlannedTx] = []
    unpaid: list[PlannedTx] = []
    for plan in plans:
        cost = plan.gas_limit * gas_price
        if cost <= spendable - reserves[plan.rank]:
            spendable -= cost
            paid.append(plan)
        else:
            unpaid.append(plan)
    return paid, unpaid


def _plan_transaction(rank: Rank, ops: Sequence[SimulatedRelay], tx_limits: TxLimits) -> PlannedTx:
    relays = tuple(op.relay for op in ops)
    first = relays[0]
    if len(relays) == 1:
        # Each return to the queue doubles the margin, so that a call that ran out of gas gets enough in the end.
        alone = ops[0].gas_alone
        gas = alone + alone * (1 << first.requeue_count) // 4 + _SINGLE_OP_EXTRA_GAS
        return PlannedTx(first.target, first.calldata, min(gas, tx_limits.gas), rank, relays)
    calldata = relayed_calls.relay_calldata(
        [_calldata_in_relay(op, before) for before, op in pairwise([None, *ops]) if op]
    )
    expected = [expected_share(relay.kind, len(relay.calldata)) for relay in relays]
    return PlannedTx(
        first.target,
        calldata,
        _total_gas(ops),
        rank,
        relays,
        0 if None in expected else sum(share for share in expected if share is not None),
    )


def _calldata_in_relay(op: SimulatedRelay, before: SimulatedRelay | None) -> bytes:
    """Return an op's calldata in a transaction of several ops. A claim directly after its job's post is shortened,
    because the registry knows the terms from the post."""
    calldata = op.relay.calldata
    if before is None or before.relay.kind is not RelayKind.POST or op.builds_on != before.relay.id:
        return calldata
    return shorten_claim_calldata(calldata)
