"""Chains of ops: ops that the chain refuses only because an older op of their job is undecided.

A post, its claim and its settle need not wait a block each, because the registry only requires their order. A relay
that reverts alone is simulated after all undecided ops of its subject that this account sends before it, in signed
transactions or in this round. If the relay passes, it is signed: the order of nonces, and of calls within a
transaction, keeps it behind the ops that it builds on.

A relay that does not pass stays queued until the older ops are decided. So do all such relays on a node that cannot
simulate several calls in turn. If an older op is refused or lost, the ops built on it return to the queue
(`resolution.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

import anyio
import attrs
import structlog

from coordinatord.base.errors import Retryable
from coordinatord.chain.relayer.account import RelayerAccount
from coordinatord.chain.relayer.coalesce import Simulated
from coordinatord.chain.relayer.op_gas import PlannedGas
from coordinatord.chain.relayer.outbox_sql import RelayKind
from coordinatord.chain.relayer.queue_sql import WaitingRelay
from coordinatord.chain.relayer.results_sql import UndecidedRelay, undecided_with
from coordinatord.chain.relayer.simulate import CallData, simulate_in_turn
from coordinatord.chain.rpc.client import Rpc
from coordinatord.chain.rpc.errors import Meaning, RpcError
from coordinatord.storage.database.connections import Connection

log = structlog.get_logger(__name__)

OF_A_JOB: Final = frozenset({RelayKind.POST, RelayKind.CLAIM, RelayKind.SETTLE, RelayKind.FAIL, RelayKind.CANCEL})
# Pause before a node without eth_simulateV1 is asked again.
_RETRY_AFTER_S: Final = 60.0
# The simulation delays ops that pass alone.
_TIMEOUT_S: Final = 3.0

_NOT_SERVED: Final = (Meaning.REFUSED, Meaning.UNSUPPORTED, Meaning.RATE_LIMITED)


@attrs.frozen(slots=True)
class _Chained:
    """Op of a chain. `gas` is its limit. `relay` is None for a signed op. `tried`: the op alone would revert."""

    id: int
    call: CallData
    gas: int
    relay: WaitingRelay | None = None
    tried: bool = False


class ChainedOps:
    def __init__(self, rpc: Rpc, account: RelayerAccount) -> None:
        self._rpc = rpc
        self._account = account
        self._rests_until = 0.0

    async def extend(
        self, connection: Connection, passing: Sequence[Simulated], behind: Sequence[WaitingRelay]
    ) -> list[Simulated]:
        """Simulate the relays of `behind` after the undecided ops of their jobs. Return the relays that pass.

        Each relay of `behind` reverts if it is simulated alone. `passing` are the relays of this round that pass alone.
        The transaction of `connection` holds the locks of both.
        """
        if anyio.current_time() < self._rests_until:
            return []
        account = self._account
        under_way = await undecided_with(connection, account.chain_id, account.address, [relay.id for relay in behind])
        first = {one.relay.id: one.relay for one in passing if not one.relay.requeued}
        tried = {relay.id: relay for relay in behind if relay.kind in OF_A_JOB and not relay.requeued}
        jobs = groupby(sorted(under_way, key=attrgetter("subject", "id")), key=attrgetter("subject"))
        chains = [chain for _, job in jobs if (chain := _chain(job, first, tried, account.gas))]
        if not chains:
            return []
        try:
            with anyio.fail_after(_TIMEOUT_S):
                return await self._passing(chains)
        except (Retryable, RpcError, TimeoutError) as error:
            log.warning("ops of one job wait for a block each", seconds=_RETRY_AFTER_S, reason=str(error))
            self._rests_until = anyio.current_time() + _RETRY_AFTER_S
            return []

    async def _passing(self, chains: Sequence[Sequence[_Chained]]) -> list[Simulated]:
        """Simulate the chains. Raise RpcError if the node does not serve the simulation, and Retryable if it does
        not answer."""
        runs = [[(link.call, link.gas) for link in chain] for chain in chains]
        answers = await simulate_in_turn(self._rpc, self._account.address, runs)
        errors = [answer for answer in answers if isinstance(answer, RpcError)]
        if len(errors) == len(answers) and errors[0].meaning in _NOT_SERVED:
            raise errors[0]
        return [
            op
            for chain, passed in zip(chains, answers, strict=True)
            if not isinstance(passed, RpcError)
            for op in _on_top(chain, passed, self._account.gas)
        ]


def _chain(
    job: Iterable[UndecidedRelay], first: Mapping[int, WaitingRelay], tried: Mapping[int, WaitingRelay], gas: PlannedGas
) -> list[_Chained]:
    """Return the undecided ops of a job that this account sends in this order, up to the last tried op.

    Return an empty list if no op comes before it.
    """
    chain: list[_Chained] = []
    for op in job:
        relay = first.get(op.id) or tried.get(op.id)
        limit = gas.limit(op.kind, len(op.calldata))
        is_ours = relay is not None or op.ahead
        if not is_ours or limit is None or (chain and op.target != chain[0].call[0]):
            # Another account's op, or not to be sent now: later ops wait.
            break
        chain.append(_Chained(op.id, (op.target, op.calldata), limit, relay, op.id in tried))
    while chain and not chain[-1].tried:
        chain.pop()
    return [] if not chain or chain[0].tried else chain


def _on_top(chain: Sequence[_Chained], passed: Sequence[bool], gas: PlannedGas) -> list[Simulated]:
    """Return the tried ops that pass. An op that does not pass is not sent, so it does not affect the ops after it."""
    found: list[Simulated] = []
    after = chain[0]
    for link, passes in zip(chain, passed, strict=True):
        if link.tried and link.relay is not None:
            if not passes:
                continue
            share = gas.share(link.relay.kind, len(link.relay.calldata), link.gas)
            found.append(Simulated(link.relay, link.gas, share, after.id))
        # A signed op, which is sent first anyway, must not hide an op that must be in the same transaction.
        if link.relay is not None or after.relay is None:
            after = link
    return found
